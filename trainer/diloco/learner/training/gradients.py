"""The forward and the backward pass of an inner step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from diloco.learner.data.task import JobTask, on
from diloco.learner.training.accumulate import Batch, accumulate, parts_of
from diloco.learner.training.devices.device import computes_in_bf16
from diloco.learner.training.share import WHOLE, Numbers, Share
from diloco.model.fragments import trained_parameters
from diloco.model.sharded import part
from diloco.spec.training import TrainingSpec

_LEAST_NORM = 1e-6
"""Added to a norm that divides, as torch's clipping does."""


def backpropagate(  # noqa: PLR0913  # each names one thing
    module: nn.Module,
    task: JobTask,
    numbers: Numbers,
    training: TrainingSpec,
    share: Share = WHOLE,
    *,
    read: Callable[[Numbers], Batch] | None = None,
    trained: Sequence[nn.Parameter] | None = None,
) -> Tensor:
    """Set the parameters' gradients to those of a batch's mean loss, clipped to ``clipNorm``.

    Returns three f32 values on the device, of the batch in all processes: the mean loss, the gradients' norm before
    they were clipped, and what the mean counts. Nothing waits for the device.

    ``numbers``: of the whole batch's examples. ``read``: reads those of this process; None: the task does. The
    parameters have no gradients before. ``trained``: those that are, from a caller that has them, as finding them takes
    some time.

    Raises:
        DataError, ModelError: the examples cannot be read, the loss cannot be used, or the batch cannot be parted.
    """
    if trained is None:
        trained = list(trained_parameters(module).values())
    device = trained[0].device
    own = share.of(numbers)
    batch = on(device, (read or task.batch)(own))

    def loss(part: Batch) -> tuple[Tensor, Tensor | float]:
        with in_training(training, device, share):
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
    expected = len(numbers) * task.usual_count
    summed, count = accumulate(loss, parts_of(batch, most), expected, share)
    gradients = [gradient for one in trained if (gradient := one.grad) is not None]
    return _scaled(gradients, share.total(summed, count, gradients), expected, training.optimizer.clip_norm)


def in_training(training: TrainingSpec, device: torch.device, share: Share) -> AbstractContextManager[object]:
    """What a step's forward pass computes in."""
    bf16 = share.needs_autocast and computes_in_bf16(training.precision, device)
    return torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext()


@torch.no_grad()
def _scaled(gradients: Sequence[Tensor], total: Tensor, expected: float, clip_norm: float) -> Tensor:
    """Correct gradients for the true count, and clip them, in one pass over them; see ``backpropagate``.

    ``total``: the sum of losses, their count, and the squared norm of gradients of the sum over ``expected``.
    """
    summed, count, squares = total
    factor = expected / count
    norm = squares.sqrt() * factor
    if clip_norm > 0:
        factor = factor * (clip_norm / (norm + _LEAST_NORM)).clamp(max=1.0)
    torch._foreach_mul_([part(one) for one in gradients], factor)  # as torch's own clipping does
    return torch.stack((summed / count, norm, count))
