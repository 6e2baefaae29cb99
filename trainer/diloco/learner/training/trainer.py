"""The inner steps on a job's task and data, counted, and the model that they train.

A skipped step's batch is used up, but counters stay as they are, so it never reaches the other learners.
"""

import time
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from diloco.core.fragments import Layout
from diloco.learner.checkpoint_parts import Others
from diloco.learner.data.opening import LearnerData
from diloco.learner.training.fragment_trainer import NOTHING, FragmentTrainer, LateResult, StepResult, TrainerState
from diloco.learner.training.share import Numbers
from diloco.learner.training.steps import InnerSteps
from diloco.spec import JobSpec


class Batches(NamedTuple):
    """What a step trains on, and what the next is expected to."""

    numbers: Numbers
    following: Numbers | None
    """None: it is not known yet, or of no use."""


class InnerTrainer(FragmentTrainer):
    """Trains a model on what a learner is dealt."""

    def __init__(
        self, job: JobSpec, module: nn.Module, layout: Layout, data: LearnerData, device: torch.device
    ) -> None:
        """``module`` is moved to ``device`` and belongs to the trainer from then on. Its parameters are version 0.

        Raises:
            DataError, OptimizerError, ModelError: see `InnerSteps`.
        """
        super().__init__(module, layout, device)
        self._begin(job, data, InnerSteps(job, module, data.task, data.sampler.sampling.batch_size))

    def _begin(self, job: JobSpec, data: LearnerData, inner: InnerSteps) -> None:
        """Take what it is dealt, and what makes its steps."""
        self.hand, self.sequences = data.sampler.hand, data.sampler.sequences
        self.data_digest = data.task.digest()
        self._sequence_length = job.training.sequence_length
        self._data = data
        self._inner = inner
        self.optimizer_identity = inner.optimizer.identity
        self.others = Others(inner.optimizer.places())
        self.batch_size = data.sampler.sampling.batch_size

    def step(self, progress: float) -> StepResult:
        """One inner step on the next batch. ``progress``: the job's merged tokens over its budget.

        Raises:
            TrainingDivergedError: the tenth step in a row whose loss or gradient was not finite.
            DataError, ModelError: the data cannot be read, or the loss cannot be used.
        """
        made = self.begin(progress)
        return made if isinstance(made, StepResult) else made()

    def begin(self, progress: float) -> StepResult | LateResult:
        """The same; if its numbers are late, what waits for them, and raises ``step``'s errors.

        Until then what is copied out counts it, as if it were not skipped, and what is received comes after it.
        """
        began = time.perf_counter()
        numbers = self._data.sampler.next_numbers(min(held.position for held in self._held))
        began_at = self._data.sampler.began
        following = self._data.sampler.following() if self._inner.reads_ahead else None
        self._begin_step(Batches(numbers, following), began_at, progress)
        self._begun_tokens = tokens = len(numbers) * self._sequence_length

        def settled() -> StepResult:
            made = self._inner.settle()
            assert made is not None, "it is settled once"
            self._count_begun(skipped=made.skipped)
            self._inner.check(made.loss)
            seconds = time.perf_counter() - began
            counted = 0 if made.skipped else tokens
            return StepResult(made.loss, counted, seconds, made.norm, made.learning_rate, made.skipped)

        return settled if self._inner.late else settled()

    def _begin_step(self, batches: Batches, began: int, progress: float) -> None:
        self._inner.begin(batches.numbers, began, progress)
        if batches.following is not None:
            self._inner.read_ahead(batches.following)

    def evaluate(self, replaced: Mapping[int, Tensor] = NOTHING) -> float:
        """See `FragmentTrainer`; in the task's unit."""
        loss, self.metrics = self._inner.evaluate(self._data.holdout.batches(), self._anchors(replaced))
        return loss

    def catch_up(self, steps: int, data_position: int) -> None:
        """See `FragmentTrainer`."""
        ahead = max(0, data_position - self.data_position) * self._sequence_length
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
        self._inner.start_over()

    def state(self) -> TrainerState:
        """See `FragmentTrainer`."""
        optimizer = self._inner.optimizer
        return TrainerState(optimizer.state(), optimizer.steps, self.steps, self.tokens, self.data_position)

    def load_state(self, state: TrainerState) -> None:
        """See `FragmentTrainer`."""
        self._inner.optimizer.load_state(state.tensors, state.optimizer_steps)
        self._count_before(state.steps - self.steps, state.tokens - self.tokens)
        self._seek(state.data_position)

    def _seek(self, position: int) -> None:
        self._data.sampler.seek(position)
        for held in self._held:
            held.position = position
