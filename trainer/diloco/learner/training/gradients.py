"""The forward and the backward pass of an inner step."""

import torch
from torch import Tensor, nn

from diloco.learner.data.task import JobTask, on
from diloco.learner.training.accumulate import Batch, accumulate, parts_of
from diloco.learner.training.device import computes_in_bf16
from diloco.learner.training.share import WHOLE, Numbers, Share
from diloco.spec.training import TrainingSpec


def backpropagate(
    module: nn.Module, task: JobTask, numbers: Numbers, training: TrainingSpec, share: Share = WHOLE
) -> tuple[Tensor, Tensor]:
    """Set the parameters' gradients to those of a batch's mean loss; returns the mean and its count, on the device.

    ``numbers``: of the whole batch's examples. The parameters have no gradients before.

    Raises:
        DataError, ModelError: the examples cannot be read, the loss cannot be used, or the batch cannot be parted.
    """
    device = next(module.parameters()).device
    own = share.of(numbers)
    batch = on(device, task.batch(own))

    def loss(part: Batch) -> tuple[Tensor, Tensor | float]:
        with torch.autocast(device.type, torch.bfloat16, enabled=computes_in_bf16(training.precision, device)):
            total, count = task.loss(module, part)
        assert isinstance(total, Tensor), "see JobTask.loss"
        if not total.requires_grad:
            raise task.mistake(
                "its loss needs no gradient; compute it from the module, without detach or torch.no_grad"
            )
        return total, count

    most = training.micro_batch_size
    if most is not None and any(one.dim() == 0 or len(one) != len(own) for one in batch.values()):
        raise task.mistake(
            f"a tensor of its batch has not {len(own)} as its first dimension, the examples; that is needed with "
            "training.microBatchSize"
        )
    return accumulate(loss, parts_of(batch, most), [one for one in module.parameters() if one.requires_grad], share)
