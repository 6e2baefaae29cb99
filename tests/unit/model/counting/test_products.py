"""The operations of a token are those that the shapes of its matrix products give."""

import warnings
from collections.abc import Callable
from typing import Any, Final

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn

from diloco.model.counting.products import flops_of_token
from diloco.model.gpt import GPT, GPTConfig
from diloco.spec.presets import GPTSize
from tests.support.huggingface import SHAPE
from tests.support.model_parts import Experts, Sometimes

LENGTH: Final = 16
LAYERS, WIDTH, INNER, KEYS, VOCABULARY = 2, 16, 32, 8, 257
ATTENTION: Final = 12 * LAYERS * WIDTH * LENGTH
QUERY, KEY, OUT, FEED_FORWARD = WIDTH * WIDTH, WIDTH * KEYS, WIDTH * WIDTH, 3 * WIDTH * INNER
HEAD: Final = WIDTH * VOCABULARY


def of(config: Any) -> nn.Module:
    with torch.device("meta"):
        module: nn.Module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    module.config.use_cache = False  # type: ignore[union-attr]  # a config
    return module


def gpt(*, tied: bool) -> nn.Module:
    return GPT(GPTConfig(GPTSize(LAYERS, WIDTH, 2), VOCABULARY, tie_embeddings=tied))


def mixture() -> nn.Module:
    experts: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": INNER}
    return of(transformers.Qwen3MoeConfig(**SHAPE, **experts))


def adapted() -> nn.Module:
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"])
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft's, about transformers
        made: nn.Module = peft.get_peft_model(of(transformers.LlamaConfig(**SHAPE)), config)
    return made


LAYER: Final = QUERY + 2 * KEY + OUT + FEED_FORWARD
CASES: Final[dict[str, tuple[Callable[[], nn.Module], int]]] = {
    "gpt": (lambda: gpt(tied=False), 6 * (LAYERS * 12 * WIDTH * WIDTH + HEAD) + ATTENTION),
    "a tied head": (lambda: gpt(tied=True), 6 * (LAYERS * 12 * WIDTH * WIDTH + HEAD) + ATTENTION),
    "llama": (lambda: of(transformers.LlamaConfig(**SHAPE)), 6 * (LAYERS * LAYER + HEAD) + ATTENTION),
    "a mixture of experts": (
        mixture,
        6 * (LAYERS * (QUERY + 2 * KEY + OUT + WIDTH * 8 + 3 * FEED_FORWARD) + HEAD) + ATTENTION,
    ),
    # A frozen layer has no product for its own gradient. In the first block nothing before the adapter needs a
    # gradient, nor do keys and values.
    "adapters": (
        adapted,
        4 * (LAYERS * LAYER + HEAD)
        + LAYERS * 6 * 2 * 2 * WIDTH
        + ATTENTION
        - 2 * (QUERY + 2 * KEY)
        - 2 * 2 * WIDTH
        - 4 * WIDTH * LENGTH,
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_products_of_matrices_count_with_attention_without_look_ups(kind: str) -> None:
    made, operations = CASES[kind]
    module = made()
    before = {name: one.data_ptr() for name, one in module.named_parameters() if not one.is_meta}
    assert flops_of_token(module, LENGTH) == operations
    assert {name: one.data_ptr() for name, one in module.named_parameters() if not one.is_meta} == before


class Embedded(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.embedding, self.part, self.output = nn.Embedding(VOCABULARY, 8), part, nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        made: Tensor = self.output(self.part(self.embedding(tokens)))
        return made


def test_a_users_own_stack_of_experts_counts_as_it_computes() -> None:
    dense = 6 * (8 * 4 + 4 * 8 * 8 + 8 * VOCABULARY)
    # Beside them, what mixes the experts' results.
    assert dense < flops_of_token(Embedded(Experts()), LENGTH) < 1.2 * dense


def test_a_model_that_looks_at_values_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    module = Embedded(Sometimes())
    assert flops_of_token(module, LENGTH) == 0
    assert "the operations of a step are not known" in caplog.text
    assert module.get_parameter("embedding.weight").is_leaf
