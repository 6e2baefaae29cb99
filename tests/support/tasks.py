"""Tasks of the user's own, valid and invalid ones, and a model for those whose examples are no tokens."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 4


def images_model() -> nn.Module:
    convolution = nn.Conv2d(1, CLASSES, 3).to(memory_format=torch.channels_last)
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(36 * CLASSES, CLASSES))


class Images:
    """Images of 8 x 8, each brighter in one of its quarters, which is its class."""

    def __init__(self, count: int = 400) -> None:
        drawn = np.random.default_rng(0)
        self.classes = drawn.integers(CLASSES, size=count)
        self.images = drawn.normal(size=(count, 1, 8, 8)).astype(np.float32)
        for image, of in zip(self.images, self.classes, strict=True):
            image[0, 4 * (of // 2) :, 4 * (of % 2) :][:4, :4] += 2

    def __len__(self) -> int:
        return len(self.classes)

    def batch(self, numbers: np.ndarray) -> dict[str, Tensor]:
        return {"images": torch.from_numpy(self.images[numbers]), "classes": torch.from_numpy(self.classes[numbers])}

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Any, Any]:
        losses = functional.cross_entropy(module(batch["images"]).float(), batch["classes"], reduction="sum")
        return losses, len(batch["classes"])

    def metrics(self, module: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, tuple[Any, Any]]:
        right = module(batch["images"]).argmax(-1) == batch["classes"]
        return {"accuracy": (right.sum(), len(right))}


def flat_images_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))


class ImagesWithKeptCounts(Images):
    """The counts are tensors that were made when this module was imported."""

    counts = torch.arange(8.0)

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Any, Any]:
        summed, count = super().loss(module, batch)
        return summed, self.counts[count]


class ImagesWithMomentum(Images):
    def optimizer(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters.values(), lr=0.05, momentum=0.9)


class ImagesWithAdafactor(Images):
    """Its state has tensors of other shapes than the parameters, and 0-dim ones."""

    def optimizer(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        weights = [one for one in parameters.values() if one.dim() > 1]
        others = [one for one in parameters.values() if one.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": weights}, {"params": others, "lr": 0.01}]
        return torch.optim.Adafactor(groups, lr=0.02)


class Counting(torch.optim.Optimizer):
    """Steps along the sign, and keeps a number for each parameter and two for its group."""

    def step(self) -> None:  # type: ignore[override]  # no closure
        with torch.no_grad():
            for group in self.param_groups:
                group["pace"] *= 0.9
                group["begun"] = True
                for parameter in group["params"]:
                    kept = self.state[parameter]
                    kept["count"] = kept.get("count", 0) + 1
                    parameter.sub_(group["lr"] * group["pace"] * parameter.grad.sign() / kept["count"])


class ImagesWithCounts(Images):
    def optimizer(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        return Counting(parameters.values(), {"lr": 0.01, "pace": 1.0, "begun": False})


class Answers:
    """Questions and answers in tokens, of which only the answers count: as many as the example's number says."""

    def __len__(self) -> int:
        return 200

    def batch(self, numbers: np.ndarray) -> dict[str, Tensor]:
        tokens = (torch.from_numpy(numbers)[:, None] + torch.arange(9)) % 257
        return {"tokens": tokens, "counts": torch.arange(8)[None] >= 7 - torch.from_numpy(numbers)[:, None] % 4}

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits = module(batch["tokens"][:, :-1])
        each = functional.cross_entropy(
            logits.flatten(0, 1).float(), batch["tokens"][:, 1:].flatten(), reduction="none"
        )
        return (each * batch["counts"].flatten()).sum(), batch["counts"].sum()


class Faulty(Images):
    """Images of which one method does what a test says."""

    def __init__(self, method: str, what: str) -> None:
        super().__init__()
        setattr(self, method, _FAULTS[what])


class NoLength(Faulty):
    def __len__(self) -> int:
        raise ValueError("not known")


def _raise(*_: object) -> Any:
    raise RuntimeError("shapes differ\nand a second line")


def _mean(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return module(batch["images"]).float().mean()  # type: ignore[no-any-return]  # torch's


_FAULTS: dict[str, Callable[..., Any]] = {
    "raises": _raise,
    "nothing": lambda *_: None,
    "empty": lambda *_: {},
    "list": lambda *_: {"images": [1.0]},
    "array": lambda *_: {"images": np.ones(2)},
    "mean": _mean,
    "detached": lambda module, batch: (_mean(module, batch).detach(), 1),
    "whole": lambda module, batch: (module(batch["images"]), 1),
    "integer": lambda *_: (3, 1),
    "count 0": lambda module, batch: (_mean(module, batch), torch.zeros(())),
    "unmade pair": lambda *_: {"accuracy": 0.5},
    "other": lambda _: torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0),
    "part": lambda parameters: torch.optim.SGD([parameters["0.weight"]], lr=1.0),
    "more": lambda parameters: torch.optim.SGD([*parameters.values(), nn.Parameter(torch.zeros(1))], lr=1.0),
    "closure": lambda parameters: torch.optim.LBFGS(parameters.values()),
}
