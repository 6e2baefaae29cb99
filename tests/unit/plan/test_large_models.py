"""Known models, by their published dimensions, without memory for them."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from diloco.model import layout_of

SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma-3-1b": (
        "gemma3_text",
        {
            "vocab_size": 262_144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "tie_word_embeddings": True,
        },
    ),
    "gemma-3-12b": (
        "gemma3_text",
        {
            "vocab_size": 262_144,
            "hidden_size": 3840,
            "intermediate_size": 15_360,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-0.6b": (
        "qwen3",
        {
            "vocab_size": 151_936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    "gpt2": ("gpt2", {}),
    "llama-3-8b": (
        "llama",
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
        },
    ),
}
PARAMETERS = {
    "gemma-3-1b": 999_885_952,
    "gemma-3-12b": 11_765_788_416,
    "qwen3-0.6b": 596_049_920,
    "gpt2": 124_439_808,
    "llama-3-8b": 8_030_261_248,
}


def on_meta(name: str) -> nn.Module:
    kind, dimensions = SIZES[name]
    config = transformers.AutoConfig.for_model(kind, **dimensions)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False, dtype="float32")


@pytest.mark.parametrize("name", SIZES)
def test_no_fragment_is_much_larger_than_the_mean(name: str) -> None:
    layout = layout_of(on_meta(name), 24)
    print(name, layout.numel, max(layout.shares) * 24, sum(len(f.slots) for f in layout.fragments))
    assert layout.numel == PARAMETERS[name]
    assert max(layout.shares) <= 1.4 / 24
