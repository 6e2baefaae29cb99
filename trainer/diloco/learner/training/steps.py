"""The inner steps of a process: forward and backward pass and optimizer, and the evaluation of the model.

A step whose loss or gradient is not finite is skipped: parameters and optimizer stay as they are. Ten such steps in a
row end the training. An accelerator decides that itself, and the host learns of it later. On a CPU, and for optimizers
of the user's own, the host reads the numbers before the optimizer's step.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np
from torch import Tensor, nn

from diloco.learner.data.task import JobTask, on
from diloco.learner.training.block_passes import checkpoint_blocks, prepare_blocks
from diloco.learner.training.devices.host_copies import Copied, HostCopies
from diloco.learner.training.evaluate import Evaluated, mean_loss
from diloco.learner.training.gradients import backpropagate
from diloco.learner.training.optimizers.optimizer import LearningRates, NamedOptimizer, OptimizerError, learning_rates
from diloco.learner.training.optimizers.own_optimizer import OwnOptimizer
from diloco.learner.training.prefetch import Prefetch
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


class _Late(NamedTuple):
    """A step of which the numbers are on their way from the device."""

    found: Tensor
    """Loss, norm and count, in host memory."""
    copied: Copied
    rates: LearningRates


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
        self._trained = list(self._parameters.values())
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
        self._copies = HostCopies(self._device)
        self._late = self._device.type != "cpu" and self.optimizer.skips_on_device
        self._begun: Made | _Late | None = None
        ahead = self._device.type == "cuda" and task.reads_anywhere
        self._ahead = Prefetch(task.batch, self._device) if ahead else None
        self._skipped_in_a_row = 0
        prepare_blocks(module, job.training, lambda: self._gradients(np.arange(batch_size), 0))
        self.optimizer.zero_grad()

    @property
    def late(self) -> bool:
        """Whether the host learns a step's numbers after it has told the device all of the step."""
        return self._late

    def begin(self, numbers: Numbers, began: int, progress: float) -> None:
        """One inner step on the examples ``numbers``; what came of it, `settle` says.

        ``began``: their place in the order. ``progress``: the job's merged tokens over its budget.

        Raises:
            DataError, ModelError: the data cannot be read, or the loss cannot be used.
        """
        assert self._begun is None, "the step before is settled"
        rates = learning_rates(self._options.optimizer, self.optimizer.steps, progress)
        found = self._gradients(numbers, began)
        if self._late:
            # Before the optimizer's step, which the device makes while the host goes on with these.
            self._begun = _Late(*self._copies.copy(found), rates)
            self.optimizer.step(rates, (~found[:2].isfinite().all()).float())
            return
        self._begun = self._made(found.cpu(), rates)
        if self._begun.skipped:
            self.optimizer.zero_grad()
        else:
            self.optimizer.step(rates)

    @property
    def reads_ahead(self) -> bool:
        """Whether ``read_ahead`` does anything."""
        return self._ahead is not None

    def read_ahead(self, numbers: Numbers) -> None:
        """Read the examples of the next step, ``numbers`` if nothing else comes, while the device makes this one."""
        if self._ahead is not None:
            self._ahead.begin(self._share.of(numbers))

    def settle(self) -> Made | None:
        """Wait until the numbers of the latest step are known, and count it; None: that was done.

        Raises:
            DataError, ModelError: the loss cannot be used.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        if isinstance(begun, Made):
            made = begun
        else:
            if begun.copied is not None:
                begun.copied.synchronize()
            made = self._made(begun.found, begun.rates)
            self.optimizer.steps -= made.skipped
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if made.skipped else 0
        return made

    def check(self, loss: float) -> None:
        """Check that not too many steps in a row were skipped, of which the latest had this ``loss``.

        Raises:
            TrainingDivergedError: it was the tenth.
        """
        if self._skipped_in_a_row >= SKIPPED_STEPS_LIMIT:
            raise TrainingDivergedError(
                f"loss or gradient was not finite in {SKIPPED_STEPS_LIMIT} steps in a row (loss {loss:g}); "
                f"lower {_RATES[self._options.optimizer.type]} or check the data"
            )

    def evaluate(self, batches: Iterable[Numbers], parameters: Mapping[str, Tensor]) -> Evaluated:
        """Means over the examples of ``batches``, of a model with ``parameters``, by name and on the device.

        Raises:
            DataError: the examples cannot be read.
            ModelError: training has changed more than trained parameters.
        """
        if self._ahead is not None:
            self._ahead.wait()  # as the examples that are held out are of the same files
        self.watch.check()
        return mean_loss(self._module, self._task, batches, parameters, self._share)

    def start_over(self) -> None:
        """Drop the inner optimizer's state; the latest step is settled."""
        self.optimizer.start_over()
        self._skipped_in_a_row = 0

    def _gradients(self, numbers: Numbers, began: int) -> Tensor:
        """Loss, gradient norm and count of a batch, on the device, f32; leaves clipped gradients in the parameters."""
        key = f"step {self._options.seed} {began}" + f" {self._share.rank}" * (self._share.rank > 0)
        # The backward pass is included: recomputed parts (activation checkpointing) may draw random numbers again.
        with seeded_by(key, self._device):
            read, trained = None if self._ahead is None else self._ahead.batch, self._trained
            return backpropagate(
                self._module, self._task, numbers, self._options, self._share, read=read, trained=trained
            )

    def _made(self, found: Tensor, rates: LearningRates) -> Made:
        loss, norm, counted = found.tolist()
        if counted <= 0:
            raise self._task.mistake(f"its loss has a count of {counted:g} in a batch; it must be above 0")
        return Made(loss, norm, rates["AdamW"], not (math.isfinite(loss) and math.isfinite(norm)))
