"""A model, and data without an end, for the loops: they fit y = sin(3 x)."""

from collections.abc import Callable, Iterator
from itertools import count

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import diloco

Batch = dict[str, Tensor]
_X = torch.linspace(-2, 2, 64)[:, None]


class Model(nn.Module):
    """Its output is its loss, as Hugging Face's `Trainer` wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: Tensor, labels: Tensor) -> Batch:
        return {"loss": functional.mse_loss(self.layers(x), labels)}


class Points(Dataset[Batch]):
    """Points by number, without an end; other ones for another seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __getitem__(self, number: int) -> Batch:
        x = torch.tensor([4 * ((self.seed + number) * 0.618034 % 1) - 2])
        return {"x": x, "labels": torch.sin(3 * x)}


def batches(seed: int, steps: int, rank: int = 0, ranks: int = 1) -> DataLoader[Batch]:
    """Batches without an end, from the one after ``steps`` on; each of several processes draws its share of them."""
    return DataLoader(Points(seed), batch_size=16 // ranks, sampler=count(16 * steps + rank, ranks))


class Later:
    """Batches for a framework that asks for its data before the session has begun."""

    def __init__(self, session: Callable[[], diloco.Session]) -> None:
        self._session = session

    def __iter__(self) -> Iterator[Batch]:
        session = self._session()
        if distributed.is_initialized():
            return iter(batches(session.seed, session.steps, distributed.get_rank(), distributed.get_world_size()))
        return iter(batches(session.seed, session.steps))


def held_out_loss(model: nn.Module) -> float:
    device = next(model.parameters()).device
    return float(model(_X.to(device), torch.sin(3 * _X).to(device))["loss"])
