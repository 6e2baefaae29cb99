"""The built-in model, a small GPT: pre-norm blocks, rotary positions, no biases.

Rotary positions (RoFormer, arXiv 2104.09864) have no parameters, so the model's tensors do not depend on the sequence
length. Query, key and value matrices are separate tensors: this balances fragments better, and keeps radial-directional
averaging, which works tensor by tensor, from mixing their directions.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from diloco.model.document_mask import attend, document_mask
from diloco.spec.presets import GPTSize

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_ROTARY_BASE = 10_000.0
_INITIAL_STD = 0.02
_ADDS_TO_RESIDUAL = ("attention.output.weight", "feed_forward.down.weight")


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """What determines a GPT's shape."""

    size: GPTSize
    vocabulary_size: int
    tie_embeddings: bool = True


class GPT(nn.Module):
    """Token ids (batch, sequence), int64, to logits (batch, sequence, vocabulary)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        size = config.size
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.output = nn.Linear(size.width, config.vocabulary_size, bias=False)
        self._initialize()
        if config.tie_embeddings:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Logits of every position's next token.

        ``position_ids`` (batch, sequence): each document begins with 0 and sees itself only. None: each row is one.
        """
        head_width = self.config.size.width // self.config.size.heads
        x = self.embedding(tokens)
        mask = None if position_ids is None else document_mask(position_ids, head_width, x.dtype)
        positions = torch.arange(tokens.shape[1], device=tokens.device) if position_ids is None else position_ids
        rotation = rotary(positions, head_width)
        for block in self.blocks:
            x = block(x, rotation, mask)
        logits: Tensor = self.output(self.norm(x))
        return logits

    def _initialize(self) -> None:
        # As in GPT-2: normal with 0.02; what is added to the residual stream is scaled down for 2 x layers additions.
        residual_std = _INITIAL_STD / (2 * self.config.size.layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=residual_std if name.endswith(_ADDS_TO_RESIDUAL) else _INITIAL_STD)


class Block(nn.Module):
    """Attention, then feed-forward, each normalized before and added after."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width, bias=False)
        self.attention = Attention(size)
        self.feed_forward_norm = nn.LayerNorm(size.width, bias=False)
        self.feed_forward = FeedForward(size)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: "Tensor | BlockMask | None") -> Tensor:
        """(batch, sequence, width) to the same."""
        x = x + self.attention(self.attention_norm(x), rotation, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))  # type: ignore[no-any-return]  # nn.Module's call is Any


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, size.width, bias=False)
        self.value = nn.Linear(size.width, size.width, bias=False)
        self.output = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: "Tensor | BlockMask | None") -> Tensor:
        """(batch, sequence, width) to the same."""
        batch, length, width = x.shape
        by_head = (batch, length, self.heads, width // self.heads)
        query = rotate(self.query(x).view(by_head).transpose(1, 2), rotation)
        key = rotate(self.key(x).view(by_head).transpose(1, 2), rotation)
        value = self.value(x).view(by_head).transpose(1, 2)
        mixed = attend(query, key, value, mask)
        merged: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return merged


class FeedForward(nn.Module):
    """Two layers with squared ReLU between them (arXiv 2109.08668): as good as GELU here and cheaper on a CPU."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to the same."""
        y: Tensor = self.down(functional.relu(self.up(x)).square())
        return y


def rotary(positions: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles of positions ([batch,] sequence): ([batch,] 1, sequence, head_width / 2), f32."""
    half = head_width // 2
    frequencies = _ROTARY_BASE ** -(torch.arange(half, dtype=torch.float32, device=positions.device) / half)
    angles = (positions.float()[..., None] * frequencies).unsqueeze(-3)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (first half, second half) of ``x`` (batch, heads, length, head_width) by its angle."""
    cos, sin = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
