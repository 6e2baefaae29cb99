"""The inner steps on a job's task and data: make one, and hold and evaluate the model.

A step whose loss or gradient is not finite is skipped: its batch is used up, but parameters, optimizer and counters
stay as they are, so it never reaches the other learners. Ten such steps in a row end the training.
"""

import math
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from diloco.core.fragments import Layout
from diloco.learner.data.opening import LearnerData
from diloco.learner.data.task import on
from diloco.learner.training.evaluate import mean_loss
from diloco.learner.training.fragment_trainer import NOTHING, FragmentTrainer, StepResult, TrainerState
from diloco.learner.training.gradients import backpropagate
from diloco.learner.training.optimizer import NamedOptimizer, learning_rates
from diloco.learner.training.own_optimizer import OwnOptimizer
from diloco.learner.training.state_watch import StateWatch
from diloco.model.randomness import seeded_by
from diloco.spec import JobSpec
from diloco.spec.training import OptimizerType

SKIPPED_STEPS_LIMIT: Final = 10
_RATES: Final[Mapping[OptimizerType, str]] = {
    "AdamW": "training.optimizer.learningRate",
    "Muon": "training.optimizer.learningRate and training.optimizer.muon.learningRate",
}


class TrainingDivergedError(RuntimeError):
    """Loss or gradient stayed not finite; the text says what to change."""


class InnerTrainer(FragmentTrainer):
    """Trains a model on what a learner is dealt."""

    def __init__(
        self, job: JobSpec, module: nn.Module, layout: Layout, data: LearnerData, device: torch.device
    ) -> None:
        """``module`` is moved to ``device`` and belongs to the trainer from then on. Its parameters are version 0.

        Raises:
            DataError: the task cannot be used, or its data has token ids outside the model's vocabulary.
            OptimizerError: the inner optimizer is not possible for this model or with this torch.
            ModelError: the model cannot be used for the task, or training changes more than its trained parameters.
        """
        super().__init__(module, layout, device)
        self.hand, self.sequences = data.sampler.hand, data.sampler.sequences
        self._options = job.training
        self._data = data
        self._task = task = data.task
        task.check(module)
        own = task.optimizer(self._parameters)
        self._optimizer = (
            NamedOptimizer(module, job.training.optimizer)
            if own is None
            else OwnOptimizer(own, self._parameters, job.training.optimizer, task)
        )
        self.optimizer_identity = self._optimizer.identity
        self.batch_size = data.sampler.sampling.batch_size
        few = on(device, task.batch(np.arange(min(2, self.batch_size))))
        self._watch = StateWatch(module, task, few, job.training, device)
        self._skipped_in_a_row = 0

    def step(self, progress: float) -> StepResult:
        """One inner step on the next batch. ``progress``: the job's merged tokens over its budget.

        Raises:
            TrainingDivergedError: the tenth step in a row whose loss or gradient was not finite.
            DataError, ModelError: the data cannot be read, or the loss cannot be used.
        """
        began = time.perf_counter()
        rates = learning_rates(self._options.optimizer, self._optimizer.steps, progress)
        numbers = self._data.sampler.next_numbers(min(held.position for held in self._held))
        loss, norm = self._gradients(on(self.device, self._task.batch(numbers)))
        finite = math.isfinite(loss) and math.isfinite(norm)
        tokens = len(numbers) * self._options.sequence_length if finite else 0
        if finite:
            self._optimizer.step(rates)
            self._skipped_in_a_row = 0
            self.steps += 1
            self.tokens += tokens
        else:
            self._skip(loss)
        return StepResult(loss, tokens, time.perf_counter() - began, norm, rates["AdamW"], not finite)

    def evaluate(self, replaced: Mapping[int, Tensor] = NOTHING) -> float:
        """See `FragmentTrainer`; in the task's unit."""
        self._watch.check()
        batches, parameters = self._data.holdout.batches(), self._anchors(replaced)
        loss, self.metrics = mean_loss(self._module, self._task, batches, self.device, parameters)
        return loss

    def catch_up(self, steps: int, data_position: int) -> None:
        """See `FragmentTrainer`."""
        ahead = max(0, data_position - self.data_position) * self._options.sequence_length
        self._count_before(max(0, steps - self.steps), ahead)
        self._seek(max(data_position, self.data_position))

    def has_data(self) -> bool:
        """See `FragmentTrainer`."""
        return self._data.sampler.has_batch()

    def jump(self) -> bool:
        """See `FragmentTrainer`.

        Others may have taken that rest. So what it has trained since it received each fragment is dropped.
        """
        if not self.hand.jump():
            return False
        for fragment, held in enumerate(self._held):
            if self.fragment_steps(fragment):
                self.apply(fragment, held.version, held.anchor)
            held.position = self.data_position
        return True

    def start_over(self) -> None:
        """See `FragmentTrainer`."""
        self._optimizer.start_over()
        self._skipped_in_a_row = 0

    def state(self) -> TrainerState:
        """See `FragmentTrainer`."""
        return TrainerState(self._optimizer.state(), self._optimizer.steps, self.steps, self.tokens, self.data_position)

    def load_state(self, state: TrainerState) -> None:
        """See `FragmentTrainer`."""
        self._optimizer.load_state(state.tensors, state.optimizer_steps)
        self._count_before(state.steps - self.steps, state.tokens - self.tokens)
        self._seek(state.data_position)

    def _seek(self, position: int) -> None:
        self._data.sampler.seek(position)
        for held in self._held:
            held.position = position

    def _gradients(self, batch: Mapping[str, Tensor]) -> tuple[float, float]:
        """Loss and gradient norm of a batch; leaves clipped gradients in the parameters."""
        # The backward pass is included: recomputed parts (activation checkpointing) may draw random numbers again.
        with seeded_by(self._key(), self.device):
            loss, count = backpropagate(self._module, self._task, batch, self.batch_size, self._options)
        used = [parameter for parameter in self._parameters.values() if parameter.grad is not None]
        norm = get_total_norm([parameter.grad for parameter in used if parameter.grad is not None])
        if self._options.optimizer.clip_norm > 0:
            clip_grads_with_norm_(used, self._options.optimizer.clip_norm, norm)
        # Read all values with one wait for the device.
        loss_value, norm_value, counted = torch.stack((loss, norm, count)).tolist()
        if counted <= 0:
            raise self._task.mistake(f"its loss has a count of {counted:g} in a batch; it must be above 0")
        return loss_value, norm_value

    def _key(self) -> str:
        """Key of a step's random numbers, from seed and place in the order."""
        return f"step {self._options.seed} {self._data.sampler.began}"

    def _skip(self, loss: float) -> None:
        self._optimizer.zero_grad()
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= SKIPPED_STEPS_LIMIT:
            raise TrainingDivergedError(
                f"loss or gradient was not finite in {SKIPPED_STEPS_LIMIT} steps in a row (loss {loss:g}, after step "
                f"{self.steps}); "
                f"lower {_RATES[self._options.optimizer.type]} or check the data"
            )
