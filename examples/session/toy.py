"""A model, and data without an end, for the three loops: they fit y = sin(3 x)."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import IterableDataset

Batch = dict[str, Tensor]
_X = torch.linspace(-2, 2, 64)[:, None]


class Model(nn.Module):
    """Its output is its loss, as Hugging Face's `Trainer` wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: Tensor, labels: Tensor) -> Batch:
        return {"loss": functional.mse_loss(self.layers(x), labels)}


class Points(IterableDataset[Batch]):
    """Points without an end, other ones for another seed. A restarted learner goes on after those that it has drawn."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.drawn = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.drawn += 1
            x = torch.tensor([4 * ((self.seed + self.drawn) * 0.618034 % 1) - 2])
            yield {"x": x, "labels": torch.sin(3 * x)}

    def state_dict(self) -> dict[str, int]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.drawn = state["drawn"]


def held_out_loss(model: nn.Module) -> float:
    device = next(model.parameters()).device
    return float(model(_X.to(device), torch.sin(3 * _X).to(device))["loss"])
