"""Finds the largest batch whose step fits the memory (`pools[].batchSize: Auto`): it tries ever larger ones.

A trial is the forward and the backward pass of a step. Memory grows with the batch in proportion, apart from what does
not depend on it. So a larger one is only tried if that says that it fits, as a process that exceeds its container's
limit is killed. What comes later is reserved: the optimizer's moments, and copies of the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import nn

from diloco.learner.data.task import JobTask
from diloco.learner.training.block_passes import checkpoint_blocks
from diloco.learner.training.devices.memory import Memory, MemoryExhaustedError
from diloco.learner.training.gradients import backpropagate
from diloco.model.fragments import trained_parameters
from diloco.model.randomness import seeded_by
from diloco.plan.memory import IN_A_PROCESS, LATER_ON_A_DEVICE, OF_FEEDBACK
from diloco.spec.training import TrainingSpec

USED_SHARE: Final = 0.9
"""Of the memory that may be planned for (ours): allocators lose some, and steps differ."""
GIB: Final = 2**30
_F32_BYTES: Final = 4


class BatchError(ValueError):
    """Not even the smallest batch fits; the text is one line that names the field."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """The largest batch that fits."""

    batch_size: int
    needed_bytes: int
    """For a step of it, with all that is reserved."""


def candidates(most: int) -> tuple[int, ...]:
    """Batch sizes to try, ascending: ``most``, a half of it, a quarter, and so on, to 1."""
    found = [most]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return tuple(reversed(found))


def fitting_batch(
    sizes: Sequence[int], memory: Memory, step: Callable[[int], None], reserved_bytes: int, gradient_bytes: int
) -> Fitting:
    """Try batch sizes, ascending, until the next one would not fit.

    A ``step`` of a size may leave gradients behind. Training needs ``reserved_bytes`` besides; ``gradient_bytes`` is
    what the steps of all sizes have in common.

    Raises:
        BatchError: the smallest does not fit.
    """
    free_bytes = memory.free_bytes()
    most_bytes = USED_SHARE * free_bytes
    fixed_bytes = memory.used_bytes() + gradient_bytes
    best: Fitting | None = None
    for size, following in zip(sizes, [*sizes[1:], None], strict=True):
        try:
            growing_bytes = max(0, memory.peak_bytes(lambda size=size: step(size)) - fixed_bytes)  # type: ignore[misc]  # called at once
        except MemoryExhaustedError:
            break
        needed_bytes = fixed_bytes + growing_bytes + reserved_bytes
        if needed_bytes > most_bytes:
            break
        best = Fitting(size, needed_bytes)
        if following is None or fixed_bytes + growing_bytes * following / size + reserved_bytes > most_bytes:
            break
    if best is None:
        raise BatchError(
            f"regions[].pools[].batchSize: Auto finds no batch: {sizes[0]} sequences need more than {USED_SHARE:.0%} "
            f"of the {free_bytes / GIB:.3g} GiB there are; use more memory, a shorter "
            "training.sequenceLength or a smaller model"
        )
    return best


class Trial:
    """Steps of a model that is about to be trained, on the first examples. They change no parameter."""

    def __init__(
        self, module: nn.Module, task: JobTask, training: TrainingSpec, device: torch.device, *, feedback: bool = False
    ) -> None:
        """``module`` is on ``device``. ``feedback``: the learner keeps what its encodings have lost.

        Raises:
            ModelError, DataError: model and task do not go together.
        """
        self._module, self._task, self._training, self._device = module, task, training, device
        checkpoint_blocks(module, training.activation_checkpointing)
        task.check(module)
        in_process = IN_A_PROCESS + (OF_FEEDBACK if feedback else 0)
        copies = LATER_ON_A_DEVICE if device.type == "cuda" else in_process
        self.gradient_bytes = _F32_BYTES * sum(parameter.numel() for parameter in trained_parameters(module).values())
        self.reserved_bytes = copies * self.gradient_bytes

    def step(self, batch_size: int) -> None:
        """A forward and a backward pass."""
        with seeded_by("trial", self._device):
            backpropagate(self._module, self._task, np.arange(batch_size) % len(self._task), self._training)

    def end(self) -> None:
        """Free the gradients."""
        self._module.zero_grad()
