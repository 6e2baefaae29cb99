"""The inner steps of a process: forward and backward pass and optimizer, and the evaluation of the model.

A step whose loss or gradient is not finite is skipped: parameters and optimizer stay as they are. Ten such steps in a
row end the training.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
from torch import Tensor, nn

from diloco.learner.data.task import JobTask, on
from diloco.learner.training.block_passes import checkpoint_blocks, prepare_blocks
from diloco.learner.training.evaluate import Evaluated, mean_loss
from diloco.learner.training.gradients import backpropagate
from diloco.learner.training.optimizer import NamedOptimizer, OptimizerError, learning_rates
from diloco.learner.training.own_optimizer import OwnOptimizer
from diloco.learner.training.share import WHOLE, Numbers, Share
from diloco.learner.training.state_watch import StateWatch
from diloco.model.fragments import trained_parameters
from diloco.model.randomness import seeded_by
from diloco.model.sharded import is_parted
from diloco.spec import JobSpec
from diloco.spec.training import OptimizerType

SKIPPED_STEPS_LIMIT: Final = 10
_RATES: Final[Mapping[OptimizerType, str]] = {
    "AdamW": "training.optimizer.learningRate",
    "Muon": "training.optimizer.learningRate and training.optimizer.muon.learningRate",
}


class TrainingDivergedError(RuntimeError):
    """Loss or gradient stayed not finite; the text says what to change."""


class Made(NamedTuple):
    """What came of a step, over all of its batch."""

    loss: float
    norm: float
    learning_rate: float
    skipped: bool


class InnerSteps:
    """Makes the steps of a model on its device; in a learner of several processes each makes its share of every one."""

    def __init__(self, job: JobSpec, module: nn.Module, task: JobTask, batch_size: int, share: Share = WHOLE) -> None:
        """``module`` is on its device. ``batch_size``: sequences in a step, of all processes.

        Raises:
            DataError: the task cannot be used, or its data has token ids outside the model's vocabulary.
            OptimizerError: the inner optimizer is not possible for this model, in several processes or with this torch.
            ModelError: the model cannot be used for the task, or training changes more than its trained parameters.
        """
        self._module, self._task, self._share = module, task, share
        self._options = job.training
        self._parameters = trained_parameters(module)
        checkpoint_blocks(module, job.training.activation_checkpointing)
        task.check(module)
        own = task.optimizer(self._parameters)
        if own is not None and any(map(is_parted, self._parameters.values())):
            raise OptimizerError(
                f"{task.field}: its optimizer is not possible in a learner of several processes; leave optimizer() "
                "out, or use processesPerNode 1"
            )
        self.optimizer = (
            NamedOptimizer(module, job.training.optimizer, share)
            if own is None
            else OwnOptimizer([own], self._parameters, job.training.optimizer, task)
        )
        self._device = next(module.parameters()).device
        few = on(self._device, task.batch(np.arange(min(2, batch_size))))
        self.watch = StateWatch(module, task, few, job.training, share)
        self._skipped_in_a_row = 0
        prepare_blocks(module, job.training, lambda: self._gradients(np.arange(batch_size), 0))
        self.optimizer.zero_grad()

    def step(self, numbers: Numbers, began: int, progress: float) -> Made:
        """One inner step on the examples ``numbers``.

        ``began``: their place in the order. ``progress``: the job's merged tokens over its budget.

        Raises:
            TrainingDivergedError: the tenth step in a row whose loss or gradient was not finite.
            DataError, ModelError: the data cannot be read, or the loss cannot be used.
        """
        rates = learning_rates(self._options.optimizer, self.optimizer.steps, progress)
        loss, norm = self._gradients(numbers, began)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self.optimizer.step(rates)
            self._skipped_in_a_row = 0
        else:
            self._skip(loss)
        return Made(loss, norm, rates["AdamW"], not finite)

    def evaluate(self, batches: Iterable[Numbers], parameters: Mapping[str, Tensor]) -> Evaluated:
        """Means over the examples of ``batches``, of a model with ``parameters``, by name and on the device.

        Raises:
            DataError: the examples cannot be read.
            ModelError: training has changed more than trained parameters.
        """
        self.watch.check()
        return mean_loss(self._module, self._task, batches, parameters, self._share)

    def start_over(self) -> None:
        """Drop the inner optimizer's state."""
        self.optimizer.start_over()
        self._skipped_in_a_row = 0

    def _gradients(self, numbers: Numbers, began: int) -> tuple[float, float]:
        """Loss and gradient norm of a batch; leaves clipped gradients in the parameters."""
        key = f"step {self._options.seed} {began}" + f" {self._share.rank}" * (self._share.rank > 0)
        # The backward pass is included: recomputed parts (activation checkpointing) may draw random numbers again.
        with seeded_by(key, self._device):
            values = backpropagate(self._module, self._task, numbers, self._options, self._share)
        loss, norm, counted = values.tolist()
        if counted <= 0:
            raise self._task.mistake(f"its loss has a count of {counted:g} in a batch; it must be above 0")
        return loss, norm

    def _skip(self, loss: float) -> None:
        self.optimizer.zero_grad()
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= SKIPPED_STEPS_LIMIT:
            raise TrainingDivergedError(
                f"loss or gradient was not finite in {SKIPPED_STEPS_LIMIT} steps in a row (loss {loss:g}); "
                f"lower {_RATES[self._options.optimizer.type]} or check the data"
            )
