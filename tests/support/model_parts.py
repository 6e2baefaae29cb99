"""Modules of which models of every kind are made, each as small as its kind allows."""

from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY: Final = 257
WIDTH: Final = 8


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


class Chain(nn.Module):
    """Embedding, parts in a row, output."""

    def __init__(self, *parts: nn.Module, bias: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.parts = nn.ModuleList(parts)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=bias)

    def forward(self, tokens: Tensor) -> Any:
        """Logits."""
        x = self.embedding(tokens)
        for part in self.parts:
            x = x + torch.tanh(part(x))
        return self.output(x)


class Aliased(Chain):
    """A part has two names."""

    def __init__(self) -> None:
        super().__init__(linear())
        self.again = self.parts[0]


class ZeroStateDict(Chain):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Of other values."""
        return {name: torch.zeros_like(value) for name, value in super().state_dict(*args, **kwargs).items()}


class Recomputed(Chain):
    def forward(self, tokens: Tensor) -> Any:
        """Logits, with activations computed again in the backward pass."""
        return checkpoint(super().forward, tokens, use_reentrant=False)


class ObjectWithLogits(Chain):
    def forward(self, tokens: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(tokens), loss=None)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).mul_(0.3).t())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Causal(nn.Module):
    """A kernel over a position and the one before."""

    def __init__(self, kernel: nn.Module) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.kernel(nn.functional.pad(x.transpose(1, 2), (1, 0)))
        return made.transpose(1, 2)


class ChannelsLast(nn.Module):
    """A sequence as an image, and a kernel that looks back."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Conv2d(2, 2, (1, 3)).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        sequences, length, _ = x.shape
        rows = x.view(sequences, length, 2, WIDTH // 2).transpose(1, 2).reshape(sequences, 2, 1, -1)
        made: Tensor = self.kernel(nn.functional.pad(rows, (2, 0))).view(sequences, 2, length, WIDTH // 2)
        return made.transpose(1, 2).flatten(2)


class Scalars(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.shift = nn.Parameter(torch.zeros(1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Experts(nn.Module):
    """Stacked experts, of which some get no gradient in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.Parameter(torch.randn(4, WIDTH, WIDTH) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.router(x), -1)
        return torch.einsum("bse,eio,bsi->bso", weights, self.experts, x)


class Sometimes(nn.Module):
    """Uses one of its parts in some batches only, so that their optimizer counts differ, and one in none."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = linear(), linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.always(x)
        if float(x.detach().sum()) * 1e3 % 2 < 1:
            made = made + self.sometimes(x)
        return made


class Recurrent(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        made: Tensor = super().forward(x)[0]
        return made


class CausalAttention(nn.TransformerEncoderLayer):
    def forward(self, src: Tensor, *_: Any, **__: Any) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(src.shape[1])
        return super().forward(src, mask, is_causal=True)


class DeafToPositions(Chain):
    """Its values go through a layer that gets no positions, and its output layer, which is new, gives zeros."""

    def __init__(self) -> None:
        super().__init__(CausalAttention(WIDTH, 2, 16, batch_first=True))
        nn.init.zeros_(self.output.weight)

    def forward(self, tokens: Tensor, position_ids: Tensor | None = None) -> Any:
        """Logits, whatever the positions."""
        del position_ids
        return super().forward(tokens)


class BatchNorm(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input.transpose(1, 2)).transpose(1, 2)


class FunctionalCall(nn.Module):
    """Looks its parameters up anew in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: Tensor) -> Tensor:
        values: dict[str, Tensor] = dict(self.inner.named_parameters())
        made: Tensor = torch.func.functional_call(self.inner, values, (x,))
        return made
