"""The forward and the backward pass of an inner step."""

import torch
from torch import Tensor, nn

from diloco.learner.data import JobTask
from diloco.learner.training.accumulate import Batch, accumulate, parts_of
from diloco.spec.training import TrainingSpec


def backpropagate(module: nn.Module, task: JobTask, batch: Batch, training: TrainingSpec) -> tuple[Tensor, Tensor]:
    """Set the parameters' gradients to those of a batch's mean loss; returns the mean and its count, on its device.

    ``batch`` is on the module's device. The parameters have no gradients before.

    Raises:
        DataError, ModelError: the loss cannot be used, or the batch cannot be parted.
    """
    device = next(module.parameters()).device

    def loss(part: Batch) -> tuple[Tensor, Tensor | float]:
        with torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "BF16"):
            total, count = task.loss(module, part)
        assert isinstance(total, Tensor), "see JobTask.loss"
        if not total.requires_grad:
            raise task.mistake(
                "its loss needs no gradient; compute it from the module, without detach or torch.no_grad"
            )
        return total, count

    most = training.micro_batch_size
    if most is not None and len({len(one) if one.dim() else 0 for one in batch.values()}) > 1:
        raise task.mistake(
            "its batch has tensors of different first dimensions; use the examples, or no training.microBatchSize"
        )
    return accumulate(loss, parts_of(batch, most), module.parameters())
