"""The forward and the backward pass of an inner step."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from diloco.learner.data import JobTask


def backpropagate(
    module: nn.Module, task: JobTask, batch: Mapping[str, Tensor], precision: Literal["F32", "BF16"]
) -> tuple[Tensor, Tensor]:
    """Add the gradients of a batch's mean loss to the parameters'; returns the mean and its count, on its device.

    ``batch`` is on the module's device.

    Raises:
        DataError, ModelError: the loss cannot be used.
    """
    device = next(module.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "BF16"):
        total, count = task.loss(module, batch)
    assert isinstance(total, Tensor), "see JobTask.loss"
    if not total.requires_grad:
        raise task.mistake("its loss needs no gradient; compute it from the module, without detach or torch.no_grad")
    loss = total / count
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    return loss.detach(), torch.as_tensor(count, dtype=loss.dtype, device=loss.device)
