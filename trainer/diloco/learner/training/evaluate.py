"""The loss of a model on held-out examples. Evaluating with other parameters does not change the model itself."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diloco.learner.data.task import JobTask, on
from diloco.model.probe import arithmetic, evaluating


class Evaluated(NamedTuple):
    """Means over the held-out examples."""

    loss: float
    """In the task's unit. Not finite if the model is broken."""
    metrics: Mapping[str, float]


def mean_loss(
    module: nn.Module,
    task: JobTask,
    batches: Iterable[NDArray[np.int64]],
    device: torch.device,
    parameters: Mapping[str, Tensor] | None = None,
) -> Evaluated:
    """Means of a task's losses and metrics, in f32 arithmetic (see ``arithmetic``) whatever the training's precision.

    ``batches``: numbers of examples. ``parameters``: used in place of the module's own of those names, on ``device``.

    Raises:
        DataError: the examples cannot be read, or a mean is over nothing.
    """
    totals: dict[str, Tensor] = {}
    with torch.no_grad(), evaluating(module), swapped(module, parameters or {}), arithmetic(module, device):
        for numbers in batches:
            batch = on(device, task.batch(numbers))
            terms = {"": task.loss(module, batch), **task.metrics(module, batch)}
            for name, term in terms.items():
                pair = [torch.as_tensor(one, dtype=torch.float64, device=device) for one in term]
                totals[name] = totals.get(name, 0.0) + torch.stack(pair)
    means: dict[str, float] = {}
    for name, total in totals.items():
        summed, counted = total.tolist()
        if counted <= 0:
            raise task.mistake(f"{name or 'its loss'} has a count of {counted:g} in an evaluation; it must be above 0")
        means[name] = summed / counted
    return Evaluated(means.pop(""), means)


@contextmanager
def swapped(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Give parameters other values inside: the same parameters, so that every name and alias of one sees them.

    A strided parameter gets a strided copy, so that a model computes the same to the bit wherever its values are from.
    """
    parameters = {name: module.get_parameter(name) for name in values}
    before = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            given = values[name]
            alike = given.stride() == parameter.stride()
            parameter.data = given if alike else torch.empty_like(parameter).copy_(given)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]
