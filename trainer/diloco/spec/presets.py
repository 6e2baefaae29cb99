"""Sizes of the built-in GPT.

`tests/unit/plan/test_model_size.py` compares the shapes with the real model's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class GPTSize:
    """Depth, width and heads; the feed-forward layer is four times the width."""

    layers: int
    width: int
    heads: int


PRESETS: Final[dict[str, GPTSize]] = {
    "pico": GPTSize(layers=3, width=48, heads=3),
    "nano": GPTSize(layers=4, width=128, heads=4),
    "micro": GPTSize(layers=6, width=256, heads=8),
    "mini": GPTSize(layers=8, width=512, heads=8),
    "gpt2": GPTSize(layers=12, width=768, heads=12),
}
"""By the name in ``model.builtin.preset``. With 8 parameter tensors a layer each can be cut into 24 fragments."""

TEXT_VOCABULARY: Final = 257
"""Number of token ids of text data: the 256 bytes, and one that ends a document."""


def gpt_shapes(preset: str, vocabulary_size: int, *, tied: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the parameter tensors, in the order in which the module registers them."""
    size = PRESETS[preset]
    yield "embedding.weight", (vocabulary_size, size.width)
    for layer in range(size.layers):
        for name, shape in _block(size.width):
            yield f"blocks.{layer}.{name}.weight", shape
    yield "norm.weight", (size.width,)
    if not tied:
        yield "output.weight", (vocabulary_size, size.width)


def _block(width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "attention_norm", (width,)
    for matrix in ("query", "key", "value", "output"):
        yield f"attention.{matrix}", (width, width)
    yield "feed_forward_norm", (width,)
    yield "feed_forward.up", (4 * width, width)
    yield "feed_forward.down", (width, 4 * width)
