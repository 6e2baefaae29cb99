"""Language models of every kind that users bring, all of which are trained.

Which are refused, with what words, is in ``test_build_model`` and ``test_state_watch``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import nn
from torch.nn.utils import parametrizations

from tests.support import model_parts as parts
from tests.support import models_with_buffers as buffered
from tests.support.model_parts import WIDTH, Causal, Chain, linear


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(requires_grad=False)


def plain() -> Chain:
    return Chain(linear(), nn.LayerNorm(WIDTH))


def tied(model: Chain) -> Chain:
    model.output.weight = model.embedding.weight
    return model


def parameter_in_two_modules() -> nn.Module:
    first, second = linear(), linear()
    second.weight = first.weight
    return Chain(first, second)


def shared_container() -> nn.Module:
    part = nn.Sequential(linear(), nn.GELU(), linear())
    return Chain(part, nn.Sequential(part, linear()))


def strided() -> nn.Module:
    return Chain(parts.Transposed(), parts.ChannelsLast(), linear())


def contiguous(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    return model


def frozen_bias() -> nn.Module:
    model = plain()
    model.get_parameter("parts.0.bias").requires_grad = False
    return model


def _drop(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    state.pop(f"{prefix}parts.0.weight")


def _rename(_module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    state[f"{prefix}weight_of_the_part"] = state.pop(f"{prefix}parts.0.weight")


def with_state_dict(hook: Callable[..., None]) -> nn.Module:
    model = plain()
    model.register_state_dict_post_hook(hook)  # type: ignore[no-untyped-call]
    return model


def hooked() -> nn.Module:
    model = plain()
    model.parts[0].register_forward_hook(lambda _module, _inputs, output: output * 1.5)
    model.parts[0].register_full_backward_hook(lambda *_: None)
    model.get_parameter("output.weight").register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]
    return model


KINDS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "plain": plain,
    "tied": lambda: tied(Chain(linear())),
    "part listed three times": lambda: Chain(*[linear()] * 3),
    "part with an alias": parts.Aliased,
    "parameter in two modules": parameter_in_two_modules,
    "shared container": shared_container,
    "tied and aliased": lambda: tied(parts.Aliased()),
    "strided": strided,
    "contiguous": lambda: contiguous(strided()),
    "kernels": lambda: Chain(
        Causal(nn.Conv1d(WIDTH, WIDTH, 2)), Causal(nn.Conv1d(WIDTH, WIDTH, 2, groups=WIDTH)), linear()
    ),
    "scalars": lambda: Chain(parts.Scalars(), linear()),
    "stacked experts": lambda: Chain(parts.Experts()),
    "used in some batches": lambda: Chain(parts.Sometimes()),
    "frozen layer": lambda: Chain(frozen(linear()), linear()),
    "frozen bias": frozen_bias,
    "state dict that drops": lambda: with_state_dict(_drop),
    "state dict that renames": lambda: with_state_dict(_rename),
    "state dict of zeros": lambda: parts.ZeroStateDict(linear()),
    "recomputed": lambda: parts.Recomputed(linear(), nn.Dropout(0.3)),
    "dropout": lambda: Chain(nn.Dropout(0.5), linear()),
    "weight norm": lambda: Chain(parametrizations.weight_norm(linear()), linear()),
    "orthogonal": lambda: Chain(parametrizations.orthogonal(linear()), linear()),
    "hooks": hooked,
    "recurrent": lambda: Chain(parts.Recurrent(WIDTH, WIDTH, batch_first=True)),
    "attention": lambda: Chain(parts.CausalAttention(WIDTH, 2, 16, batch_first=True)),
    "part kept in evaluation": lambda: Chain(nn.Dropout(0.9).eval(), linear()),
    "batch norm kept in evaluation": lambda: Chain(parts.BatchNorm(WIDTH).eval(), linear()),
    "object with logits": lambda: parts.ObjectWithLogits(linear()),
    "functional call": lambda: Chain(parts.FunctionalCall()),
    "float mask": buffered.float_mask,
    "whole numbers": buffered.whole_numbers,
    "bool mask": buffered.bool_mask,
    "bf16 table": buffered.bf16_table,
    "drawn table": buffered.drawn_table,
    "not saved": buffered.not_saved,
    "growing cache": buffered.GrowingCache,
    "frozen embedding": buffered.frozen_embedding,
    "lora": buffered.Lora,
}

TOLD: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "looking ahead": lambda: Chain(nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)),
}
"""Trained with a warning."""


def made(kind: str) -> nn.Module:
    """An entrypoint."""
    return {**KINDS, **TOLD}[kind]()


_SMALL: Final = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": parts.VOCABULARY}
_EXPERTS: Final = {"num_key_value_heads": 1, "intermediate_size": 16}


def hugging_face(kind: str, **changes: Any) -> nn.Module:
    """A causal language model of a kind that transformers knows."""
    import transformers  # noqa: PLC0415  # loads for seconds

    sizes = (_SMALL | changes) if kind not in ("gpt2", "mamba") else changes | {"vocab_size": parts.VOCABULARY}
    config = transformers.AutoConfig.for_model(kind, **sizes, use_cache=False)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model


HUGGING_FACE: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": _EXPERTS,
    "qwen3": _EXPERTS | {"head_dim": 4, "tie_word_embeddings": True},
    "gemma3_text": _EXPERTS | {"head_dim": 4},
    "gpt2": {"n_embd": 8, "n_layer": 1, "n_head": 2},
    "mixtral": _EXPERTS | {"num_local_experts": 2},
    "qwen3_moe": _EXPERTS | {"head_dim": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    "mamba": {"hidden_size": 8, "num_hidden_layers": 1, "state_size": 4},
    "gpt_neox": {"intermediate_size": 16},
}
