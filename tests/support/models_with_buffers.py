"""Models with more than trained parameters: constants, and buffers that training would change."""

import random

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

VOCABULARY = 257
WIDTH = 8


class _Base(nn.Module):
    """Embedding, something in the middle, output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.between(torch.tanh(self.middle(self.embedding(tokens)))))
        return logits

    def between(self, x: Tensor) -> Tensor:
        """(batch, sequence, WIDTH) to the same."""
        return x


class _Added(_Base):
    """Adds a buffer, looked up or cast, to every position."""

    table: Tensor

    def __init__(self, table: Tensor, *, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=persistent)

    def between(self, x: Tensor) -> Tensor:
        return x + self.table.to(x.dtype).nan_to_num(neginf=-0.5)


def float_mask() -> nn.Module:
    return _Added(torch.tensor([0.0, float("-inf")] * (WIDTH // 2)))


def whole_numbers() -> nn.Module:
    return _Added(torch.arange(WIDTH))


def bool_mask() -> nn.Module:
    return _Added(torch.arange(WIDTH) % 2 == 0)


def bf16_table() -> nn.Module:
    return _Added(torch.linspace(-1, 1, WIDTH, dtype=torch.bfloat16))


def drawn_table() -> nn.Module:
    return _Added(torch.randn(WIDTH))


def not_saved() -> nn.Module:
    return _Added(torch.linspace(-1, 1, WIDTH), persistent=False)


def tied() -> nn.Module:
    model = _Base()
    model.output.weight = model.embedding.weight
    return model


def frozen_embedding(fill: float | None = None) -> nn.Module:
    model = _Base()
    model.embedding.requires_grad_(requires_grad=False)
    if fill is not None:
        model.embedding.weight.fill_(fill)
    return model


class Lora(_Base):
    """A frozen base, and a trained product of two narrow matrices beside its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(requires_grad=False)
        self.narrow = nn.Linear(WIDTH, 2, bias=False)
        self.wide = nn.Linear(2, WIDTH, bias=False)

    def between(self, x: Tensor) -> Tensor:
        widened: Tensor = self.wide(self.narrow(x))
        return x + widened


# What training changes ----------------------------------------------------------------------------------------------


class _Normed(_Base):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def between(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return normed


def batch_norm() -> nn.Module:
    return _Normed(nn.BatchNorm1d(WIDTH))


def spectral_norm() -> nn.Module:
    model = _Base()
    parametrizations.spectral_norm(model.middle)
    return model


class Averaging(_Base):
    """Keeps a moving average of a weight, in place, by way of ``.data``, or by assignment."""

    average: Tensor

    def __init__(self, manner: str = "in place", *, persistent: bool = True) -> None:
        super().__init__()
        self.manner = manner
        self.register_buffer("average", self.middle.weight.detach().clone(), persistent=persistent)

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            weight, average = self.middle.weight.detach(), self.average
            if self.manner == "in place":
                average.lerp_(weight, 0.1)
            elif self.manner == "data":
                average.data.lerp_(weight, 0.1)
            else:
                self.average = average.lerp(weight, 0.1)
        return x @ self.average.T


class Counting(_Base):
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return x


class Teacher(_Base):
    """A frozen copy of a layer, which follows it while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            self.teacher.weight.data.lerp_(self.middle.weight.data, 0.1)
        taught: Tensor = self.teacher(x)
        return x + taught


class Late(_Base):
    """Changes what it computes from its fourth pass in training on: a buffer that is not saved, or an attribute."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.passes = 0
        self.shift: Tensor | float = 0.0
        if buffer:
            del self.shift
            self.register_buffer("shift", torch.zeros(()), persistent=False)

    def between(self, x: Tensor) -> Tensor:
        self.passes += self.training
        if self.training and self.passes > 3:
            self.shift = self.shift + 0.1
        return x + self.shift


class Unsteady(_Base):
    """Draws from a source that is not torch's, in evaluation too."""

    def between(self, x: Tensor) -> Tensor:
        return x + random.random()  # no secret


class PartlyEvaluating(_Base):
    """A base of which one part stays in evaluation mode, as its owner has set it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH).eval()
        self.dropout = nn.Dropout(0.5)

    def between(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        dropped: Tensor = self.dropout(normed)
        return dropped


class FrozenNorm(_Base):
    """Its own ``train`` keeps the running statistics as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.5)

    def train(self, mode: bool = True) -> "FrozenNorm":  # noqa: FBT002  # as torch has it
        super().train(mode)
        self.norm.eval()
        return self

    def between(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.dropout(self.norm(x.transpose(1, 2)).transpose(1, 2))
        return dropped


def evaluating() -> nn.Module:
    """As a loader of trained models returns it."""
    return PartlyEvaluating().eval()


class HalfBase(_Base):
    """Part of it is frozen in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).bfloat16().requires_grad_(requires_grad=False)

    def between(self, x: Tensor) -> Tensor:
        added: Tensor = x + self.frozen(x)
        return added


class ExtraState(_Base):
    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}

    def set_extra_state(self, state: object) -> None:
        pass


class GrowingCache(_Base):
    """Computes a table for as many positions as it has seen."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(0, WIDTH), persistent=False)

    def between(self, x: Tensor) -> Tensor:
        if self.table.shape[0] < x.shape[1]:
            self.table = torch.linspace(0, 1, x.shape[1])[:, None].expand(-1, WIDTH)
        grown: Tensor = x + self.table[: x.shape[1]]
        return grown


def looks_at_values() -> nn.Module:
    """Cannot be built without values."""
    model = tied()
    model.get_parameter("middle.weight").detach().sum().item()
    return model


def wider_with_values() -> nn.Module:
    """Builds another model if it gets no values."""
    model = tied()
    if not model.get_parameter("middle.weight").is_meta:
        model.register_parameter("more", nn.Parameter(torch.zeros(WIDTH)))
    return model
