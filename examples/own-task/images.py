"""A model and a task that know nothing of language: images of 8 x 8, and which quarter of each is brighter."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def make_model() -> nn.Module:
    """A small convolutional network with four classes."""
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))


class Quarters:
    """What ``spec.task`` names."""

    def __init__(self, count: int) -> None:
        drawn = torch.Generator().manual_seed(0)
        self.classes = torch.randint(4, (count,), generator=drawn)
        self.images = torch.randn((count, 1, 8, 8), generator=drawn)
        bright = torch.nn.functional.one_hot(self.classes, 4).view(count, 1, 2, 2)
        self.images += bright.repeat_interleave(4, 2).repeat_interleave(4, 3)

    def __len__(self) -> int:
        return len(self.classes)

    def batch(self, numbers):
        return {"images": self.images[numbers], "classes": self.classes[numbers]}

    def loss(self, module, batch):
        return cross_entropy(module(batch["images"]), batch["classes"], reduction="sum"), len(batch["classes"])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters.values(), lr=0.02, momentum=0.9)

    def metrics(self, module, batch):
        right = module(batch["images"]).argmax(-1) == batch["classes"]
        return {"accuracy": (right.sum(), len(right))}
