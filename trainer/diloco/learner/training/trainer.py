"""The operations of the inner loop: make a step, copy a fragment out or in, evaluate. None waits for the network.

The caller decides when. Every method is called by the thread that trains, unless it says otherwise.

A step whose loss or gradient is not finite is skipped: its batch is used up, but parameters, optimizer and counters
stay as they are, so it never reaches the other learners. Ten such steps in a row end the training.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from diloco.core.fragments import Layout
from diloco.learner.data.opening import LearnerData
from diloco.learner.data.task import on
from diloco.learner.training.capture import Capture, Reader
from diloco.learner.training.evaluate import mean_loss
from diloco.learner.training.gradients import backpropagate
from diloco.learner.training.optimizer import LearningRates, NamedOptimizer, learning_rates
from diloco.learner.training.own_optimizer import OwnOptimizer
from diloco.learner.training.state_watch import StateWatch
from diloco.model.fragments import trained_parameters, whole_tensors, write_fragment
from diloco.model.randomness import seeded_by
from diloco.spec import JobSpec
from diloco.spec.training import OptimizerType

SKIPPED_STEPS_LIMIT: Final = 10
_RATES: Final[Mapping[OptimizerType, str]] = {
    "AdamW": "training.optimizer.learningRate",
    "Muon": "training.optimizer.learningRate and training.optimizer.muon.learningRate",
}
_NOTHING: Final[Mapping[int, Tensor]] = MappingProxyType({})


class TrainingDivergedError(RuntimeError):
    """Loss or gradient stayed not finite; the text says what to change."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One inner step."""

    loss: float
    """Mean, in the task's unit. In a skipped step either this or the gradient is not finite."""
    tokens: int
    """Tokens trained on, where each example counts as training.sequenceLength: 0 in a skipped step."""
    seconds: float
    grad_norm: float
    """Global norm of the gradient before clipping."""
    learning_rates: LearningRates
    skipped: bool
    """Loss or gradient was not finite: nothing was changed and the step does not count."""


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a restarted learner restores. The model is not in it: that comes from the syncer."""

    tensors: Mapping[str, Tensor]
    """The inner optimizer's moments, in host memory, not shared."""
    optimizer_steps: int
    steps: int
    tokens: int
    data_position: int


@dataclass(slots=True)
class _Held:
    """A fragment as last received, and the steps, tokens and sequences before."""

    version: int
    anchor: Tensor
    """As received, flat f32 in host memory. Never written to: captures refer to it."""
    steps: int
    tokens: int
    position: int = 0


class InnerTrainer:
    """Trains a model on what a learner is dealt and counts steps and tokens of each fragment."""

    def __init__(
        self, job: JobSpec, module: nn.Module, layout: Layout, data: LearnerData, device: torch.device
    ) -> None:
        """``module`` is moved to ``device`` and belongs to the trainer from then on. Its parameters are version 0.

        Raises:
            DataError: the task cannot be used, or its data has token ids outside the model's vocabulary.
            OptimizerError: the inner optimizer is not possible for this model or with this torch.
            ModelError: the model cannot be used for the task, or training changes more than its trained parameters.
        """
        self._options = job.training
        self._module = module.to(device)
        self._layout = layout
        self._data = data
        self._task = task = data.task
        self._device = device
        task.check(module)
        self._parameters = trained_parameters(module)
        own = task.optimizer(self._parameters)
        self._optimizer = (
            NamedOptimizer(self._module, job.training.optimizer)
            if own is None
            else OwnOptimizer(own, self._parameters, job.training.optimizer, task)
        )
        self._reader = Reader(module, device)
        few = on(device, task.batch(np.arange(min(2, self.batch_size))))
        self._watch = StateWatch(self._module, task, few, job.training, device)
        self.metrics: Mapping[str, float] = {}
        """Means of the task's metrics in the latest evaluation."""
        self._skipped_in_a_row = 0
        self.steps = 0
        """Inner steps of this learner so far, without skipped ones."""
        self.tokens = 0
        """Tokens in those steps."""
        self._held = [_Held(0, self._now(index), 0, 0) for index in range(len(layout.fragments))]

    @property
    def data_position(self) -> int:
        """Sequences taken."""
        return self._data.sampler.position

    @property
    def batch_size(self) -> int:
        """Sequences in an inner step."""
        return self._data.sampler.sampling.batch_size

    @property
    def versions(self) -> tuple[int, ...]:
        """Version held of each fragment; 0 is the initial model."""
        return tuple(held.version for held in self._held)

    @property
    def staleness(self) -> int:
        """Inner steps since the most stale fragment was received."""
        return max(self.fragment_steps(index) for index in range(len(self._held)))

    @property
    def optimizer_identity(self) -> str:
        """Which inner optimizer trains which parameters, as text."""
        return self._optimizer.identity

    def fragment_steps(self, fragment: int) -> int:
        """c_steps: inner steps since ``fragment`` was received."""
        return self.steps - self._held[fragment].steps

    def fragment_tokens(self, fragment: int) -> int:
        """c_tokens: tokens in those steps."""
        return self.tokens - self._held[fragment].tokens

    def step(self, progress: float) -> StepResult:
        """One inner step on the next batch. ``progress``: the job's merged tokens over its budget.

        Raises:
            TrainingDivergedError: the tenth step in a row whose loss or gradient was not finite.
            DataError, ModelError: the data cannot be read, or the loss cannot be used.
        """
        began = time.perf_counter()
        rates = learning_rates(self._options.optimizer, self._optimizer.steps, progress)
        numbers = self._data.sampler.next_numbers(min(held.position for held in self._held))
        loss, norm = self._gradients(on(self._device, self._task.batch(numbers)))
        finite = math.isfinite(loss) and math.isfinite(norm)
        tokens = len(numbers) * self._options.sequence_length if finite else 0
        if finite:
            self._optimizer.step(rates)
            self._skipped_in_a_row = 0
            self.steps += 1
            self.tokens += tokens
        else:
            self._skip(loss)
        return StepResult(loss, tokens, time.perf_counter() - began, norm, rates, not finite)

    def capture(self, fragment: int) -> Capture:
        """A fragment's outer gradient as of now. This only copies; reading ``Capture.delta`` does the rest."""
        held = self._held[fragment]
        values, copied = self._reader.read(self._layout.fragments[fragment])
        return Capture(
            fragment=fragment,
            base_version=held.version,
            steps=self.fragment_steps(fragment),
            tokens=self.fragment_tokens(fragment),
            _anchor=held.anchor,
            _values=values,
            _copied=copied,
            data_from=held.position,
            data_to=self.data_position,
        )

    def buffer(self, fragment: int) -> Tensor:
        """A new flat f32 host buffer to receive ``fragment`` into. May be called by any thread."""
        return self._reader.host_buffer(self._layout.fragments[fragment])

    def apply(self, fragment: int, version: int, values: Tensor) -> None:
        """Overwrite a fragment with what was received; reset its counters. Optimizer moments stay (paper: alpha = 0).

        ``values``: flat f32 in host memory. It becomes the anchor, so the caller must not write to it any more.

        Raises:
            ValueError: ``values`` is of another size or type than the fragment.
        """
        write_fragment(self._module, self._layout.fragments[fragment], values)
        self._held[fragment] = _Held(version, values, self.steps, self.tokens, self.data_position)

    def evaluate(self, replaced: Mapping[int, Tensor] = _NOTHING) -> float:
        """Held-out loss, in the task's unit, of the global model: of the anchors, without the steps made since.

        ``replaced``: by fragment, flat f32 host buffers to use in place of the anchor. Training is not affected. If the
        model is broken the result is not finite.

        Raises:
            DataError: the data cannot be read.
            ModelError: training has changed more than trained parameters, so that this is not the others' model.
        """
        self._watch.check()
        flats = [replaced.get(index, held.anchor) for index, held in enumerate(self._held)]
        there = [flat.to(self._device, non_blocking=True) for flat in flats]
        parameters = whole_tensors(self._layout, there)
        batches = self._data.holdout.batches()
        loss, self.metrics = mean_loss(self._module, self._task, batches, self._device, parameters)
        return loss

    def catch_up(self, steps: int, data_position: int) -> None:
        """Continue from the syncer's record of this learner, if that is further, so that no sequence is used twice."""
        ahead_steps = max(0, steps - self.steps)
        ahead_tokens = max(0, data_position - self.data_position) * self._options.sequence_length
        self.steps += ahead_steps
        self.tokens += ahead_tokens
        for held in self._held:  # steps of an earlier process do not count as made since this one received a fragment
            held.steps += ahead_steps
            held.tokens += ahead_tokens
        self._seek(max(data_position, self.data_position))

    def has_data(self) -> bool:
        """Whether the next batch has been dealt."""
        return self._data.sampler.has_batch()

    def jump(self) -> bool:
        """Go on with what was dealt instead of the rest of what it had, if anything was; returns whether it does.

        Others may have taken that rest. So what it has trained since it received each fragment is dropped.
        """
        if not self._data.sampler.hand.jump():
            return False
        for fragment, held in enumerate(self._held):
            if self.fragment_steps(fragment):
                self.apply(fragment, held.version, held.anchor)
            held.position = self.data_position
        return True

    def start_over(self) -> None:
        """Drop the inner optimizer's state, which may be what diverged. The model is received as usual."""
        self._optimizer.start_over()
        self._skipped_in_a_row = 0

    def state(self) -> TrainerState:
        """A copy of what a restarted learner needs, in host memory; another thread may write it to disk.

        Raises:
            OptimizerError: an optimizer of the user's own keeps what cannot be saved.
        """
        return TrainerState(self._optimizer.state(), self._optimizer.steps, self.steps, self.tokens, self.data_position)

    def load_state(self, state: TrainerState) -> None:
        """Restore ``state``, before the first step. Fragments and their counters are not in it.

        Raises:
            KeyError, ValueError: it is of another model or inner optimizer.
        """
        self._optimizer.load_state(state.tensors, state.optimizer_steps)
        self.steps, self.tokens = state.steps, state.tokens
        for held in self._held:
            held.steps, held.tokens = state.steps, state.tokens
        self._seek(state.data_position)

    def _seek(self, position: int) -> None:
        self._data.sampler.seek(position)
        for held in self._held:
            held.position = position

    def _gradients(self, batch: Mapping[str, Tensor]) -> tuple[float, float]:
        """Loss and gradient norm of a batch; leaves clipped gradients in the parameters."""
        # The backward pass is included: recomputed parts (activation checkpointing) may draw random numbers again.
        with seeded_by(self._key(), self._device):
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

    def _now(self, index: int) -> Tensor:
        values, copied = self._reader.read(self._layout.fragments[index])
        if copied is not None:
            copied.synchronize()
        return values
