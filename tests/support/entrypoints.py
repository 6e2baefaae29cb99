"""Examples of a user's own entrypoints, valid and invalid ones."""

import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

NOT_CALLABLE = 3


class TinyModel(nn.Module):
    """Smallest model that trains: tied weights, a frozen parameter and a bias."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.middle = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((width,), 2.0), requires_grad=False)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(torch.tanh(self.middle(self.embedding(tokens))) * self.scale)
        return logits


def tiny_model(vocabulary: int = 257, width: int = 8) -> nn.Module:
    return TinyModel(vocabulary, width)


def hooked_model() -> nn.Module:
    """Its state dict lacks one parameter and has copies of the others as they were at first."""
    model = TinyModel(257, 8)
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def hook(_module: nn.Module, state: dict[str, Tensor], _prefix: str, _metadata: object) -> None:
        state.update(first)
        del state["middle.bias"]

    model.register_state_dict_post_hook(hook)  # type: ignore[no-untyped-call]
    return model


def raising_model() -> nn.Module:
    raise RuntimeError("no weights here\nand a second line")


def no_module() -> object:
    return object()


def flat_logits() -> nn.Module:
    return nn.Sequential(nn.Embedding(257, 8), nn.Flatten(0, 1))


def half_model() -> nn.Module:
    return nn.Embedding(257, 257).bfloat16()


def frozen_model() -> nn.Module:
    return nn.Embedding(257, 257).requires_grad_(requires_grad=False)


def filled_model(value: float) -> nn.Module:
    model = nn.Embedding(257, 257)
    nn.init.constant_(model.weight, value)
    return model


def meta_model() -> nn.Module:
    return nn.Embedding(257, 257, device="meta")


def lazy_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(257, 8), nn.LazyLinear(257))


def sparse_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(257, 8, sparse=True), nn.Linear(8, 257))


def overlapping_model() -> nn.Module:
    model = nn.Linear(8, 8)
    model.weight = nn.Parameter(torch.ones(1, 8).expand(8, 8))
    return model


def two_on_one_storage() -> nn.Module:
    model = nn.Module()
    whole = torch.zeros(12)
    model.a, model.b = nn.Parameter(whole[:8]), nn.Parameter(whole[7:])
    return model


def object_of_no_logits() -> nn.Module:
    class Named(nn.Embedding):
        def forward(self, tokens: Tensor) -> dict[str, Tensor]:  # type: ignore[override]  # wrong on purpose
            return {"scores": super().forward(tokens)}

    return Named(257, 257)


class CountingSource:
    """Token i is i modulo the vocabulary, so a batch shows where it was read."""

    def __init__(self, count: int, vocabulary_size: int = 257, end: object = None) -> None:
        self.count = count
        self.vocabulary_size = vocabulary_size
        self.end_of_document = vocabulary_size - 1 if end is None else end

    def __len__(self) -> int:
        return self.count

    def read(self, start: int, stop: int) -> np.ndarray:
        return np.arange(start, stop) % self.vocabulary_size


def counting_source(count: int, vocabulary_size: int = 257, end: object = None) -> CountingSource:
    return CountingSource(count, vocabulary_size, end)


def numbers_without_end(count: int) -> CountingSource:
    source = CountingSource(count)
    del source.end_of_document
    return source


class WordTokenizer:
    """One token per word: 0 to 8 by its length, and 9 at the end."""

    name = "words"
    vocabulary_size = 10
    end_of_document = 9

    def encode(self, piece: bytes) -> Sequence[int]:
        return [min(8, len(word)) for word in piece.decode().split()]


def word_tokenizer() -> WordTokenizer:
    return WordTokenizer()


def dropping_model() -> nn.Module:
    """Draws in every inner step."""
    return nn.Sequential(nn.Embedding(257, 8), nn.Dropout(0.5), nn.Linear(8, 257))


def exiting_model() -> nn.Module:
    sys.exit(3)


class _Exiting(TinyModel):
    """Ends the process in its forward pass: at once, or only where it learns."""

    def __init__(self, *, only_where_it_learns: bool) -> None:
        super().__init__(257, 8)
        self.only_where_it_learns = only_where_it_learns

    def forward(self, tokens: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.only_where_it_learns:
            sys.exit(3)
        return super().forward(tokens)


def model_that_exits_when_called() -> nn.Module:
    return _Exiting(only_where_it_learns=False)


def model_that_exits_when_it_learns() -> nn.Module:
    return _Exiting(only_where_it_learns=True)
