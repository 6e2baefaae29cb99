"""The loss of a model on held-out examples. Evaluating with other parameters does not change the model itself."""

import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diloco.learner.data.task import JobTask, on
from diloco.learner.training.share import WHOLE, Share
from diloco.model.probe import arithmetic, evaluating
from diloco.model.values import swapped


class Evaluated(NamedTuple):
    """Means over the held-out examples."""

    loss: float
    """In the task's unit. Not finite if the model is broken."""
    metrics: Mapping[str, float]


def mean_loss(
    module: nn.Module,
    task: JobTask,
    batches: Iterable[NDArray[np.int64]],
    parameters: Mapping[str, Tensor] | None = None,
    share: Share = WHOLE,
) -> Evaluated:
    """Means of a task's losses and metrics, in ``arithmetic``: f32, but for a sharded model that trains in BF16.

    ``batches``: numbers of examples. ``parameters``: used in place of the module's own of those names, on its device.

    Raises:
        DataError: the examples cannot be read, or a mean is over nothing.
    """
    device = next(module.parameters()).device
    totals: dict[str, Tensor] = {}
    with torch.no_grad(), evaluating(module), swapped(module, parameters or {}), arithmetic(module, device):
        for numbers, counts in share.in_turn(batches):
            batch = on(device, task.batch(numbers))
            terms = {"": task.loss(module, batch), **task.metrics(module, batch)}
            for name, term in terms.items():
                pair = [torch.as_tensor(one, dtype=torch.float64, device=device) for one in term]
                totals[name] = totals.get(name, 0.0) + torch.stack(pair) * counts
    means: dict[str, float] = {}
    names = sorted(totals)  # the same order in all processes
    if share.ranks > 1:
        digest = zlib.crc32("\n".join(names).encode())
        if int(share.summed(torch.tensor(digest, device=device))) != share.ranks * digest:
            raise task.mistake(
                "its metrics have other names for some batches; with several processes use the same in each"
            )
    for name in names:
        summed, counted = share.summed(totals[name]).tolist()
        if counted <= 0:
            raise task.mistake(f"{name or 'its loss'} has a count of {counted:g} in an evaluation; it must be above 0")
        means[name] = summed / counted
    return Evaluated(means.pop(""), means)
