"""Sizes of the built-in GPT."""

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
