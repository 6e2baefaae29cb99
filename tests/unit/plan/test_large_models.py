"""Known models, by their published dimensions, without memory for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from diloco.model.build import layout_of_job
from tests.support.small_job import small_job


def dimensions(
    vocabulary: int, width: int, inner: int, layers: int, heads: tuple[int, int, int], *, tied: bool = True
) -> dict[str, Any]:
    """``heads``: of queries, of keys, and how wide each is."""
    queries, keys, head = heads
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": queries,
        "num_key_value_heads": keys,
        "head_dim": head,
        "tie_word_embeddings": tied,
    }


GEMMA, QWEN = ("gemma3_text", "Gemma3ForCausalLM"), ("qwen3", "Qwen3ForCausalLM")
GPT2, LLAMA = ("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForCausalLM")
MODELS: dict[str, tuple[tuple[str, str], dict[str, Any], int]] = {
    "gemma-3-1b": (GEMMA, dimensions(262_144, 1152, 6912, 26, (4, 1, 256)), 999_885_952),
    "gemma-3-12b": (GEMMA, dimensions(262_144, 3840, 15_360, 48, (16, 8, 256)), 11_765_788_416),
    "qwen3-0.6b": (QWEN, dimensions(151_936, 1024, 3072, 28, (16, 8, 128)), 596_049_920),
    "gpt2": (GPT2, {}, 124_439_808),
    "llama-3-8b": (LLAMA, dimensions(128_256, 4096, 14_336, 32, (32, 8, 128), tied=False), 8_030_261_248),
}
"""By name: kind and architecture, dimensions, and the number of parameters."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config.json for each model."""
    root = tmp_path_factory.mktemp("models")
    for name, ((kind, architecture), given, _) in MODELS.items():
        config = {"model_type": kind, "architectures": [architecture], **given}
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    return root


@pytest.mark.parametrize("name", MODELS)
def test_fragments_are_even(name: str, folders: Path) -> None:
    given = {"huggingface": {"path": str(folders / name)}}
    layout = layout_of_job(small_job(model=given, sync={"fragments": 24}))
    assert layout.numel == MODELS[name][2]
    assert max(layout.shares) <= 1.4 / 24
