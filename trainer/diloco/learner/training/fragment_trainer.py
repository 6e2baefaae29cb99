"""What every learner's training has, whoever makes its steps: a model in fragments, as received and as trained since.

The inner loop calls nothing else of a trainer. Every method is called by the thread that trains, unless it says
otherwise; none waits for the network.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor, nn

from diloco.core.fragments import Layout
from diloco.learner.checkpoint_parts import Others
from diloco.learner.data.sampler import Hand
from diloco.learner.training.capture import Capture, Reader
from diloco.model.fragments import trained_parameters, whole_tensors

NOTHING: Final[Mapping[int, Tensor]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StepResult:
    """An inner step."""

    loss: float
    """Mean, in the task's unit. In a skipped step either this or the gradient is not finite."""
    tokens: int
    """Tokens trained on, where each example counts as training.sequenceLength: 0 in a skipped step."""
    seconds: float
    grad_norm: float
    """Global norm of the gradient before clipping."""
    learning_rate: float
    """Of AdamW, or of the first group of an optimizer of the user's own."""
    skipped: bool
    """Loss or gradient was not finite: nothing was changed and the step does not count."""
    steps: int = 1
    """Steps that this stands for: more than one if a loop of the user's own tells of several at once."""


LateResult = Callable[[], StepResult]
"""Waits for the numbers of a step that the device makes."""


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a restarted learner restores. The model is not in it: that comes from the syncer."""

    tensors: Mapping[str, Tensor]
    """The inner optimizer's moments, in host memory, not shared; of several processes: the part of the first. With a
    loop of the user's own, what that saves too."""
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


class FragmentTrainer(ABC):
    """Holds a model's fragments and counts the steps and tokens of each; a subclass makes the steps."""

    batch_size: int
    """Sequences in an inner step."""
    optimizer_identity: str
    """Which inner optimizer trains which parameters, as text."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        """``module`` is moved to ``device``. Its parameters are version 0.

        Raises:
            ModelError: it cannot be read in fragments.
        """
        self.layout, self.device = layout, device
        self._module = module.to(device)
        self._parameters = trained_parameters(module)
        self._reader = Reader(module, device)
        self.hand = Hand()
        """What the syncer deals; a loop with data of its own is dealt none."""
        self.sequences = 0
        """Those of the job's data that are trained on, in all; 0: the data is not the job's."""
        self.data_digest = ""
        """Of the job's data; empty: it has none."""
        self.others = Others({})
        """The other processes of this learner, which write and read parts of its checkpoints."""
        self.metrics: Mapping[str, float] = {}
        """Means of the task's metrics in the latest evaluation."""
        self.steps = 0
        """Inner steps of this learner so far, without skipped ones."""
        self.tokens = 0
        """Tokens in those steps."""
        self._begun_tokens: int | None = None
        """Of a step that has begun and of which it is not known whether it is skipped; None: there is none."""
        self._held = [_Held(0, self._now(index), 0, 0) for index in range(len(layout.fragments))]

    @property
    def data_position(self) -> int:
        """Sequences taken of what was dealt."""
        return self.hand.position

    @property
    def versions(self) -> tuple[int, ...]:
        """Version held of each fragment; 0 is the initial model."""
        return tuple(held.version for held in self._held)

    @property
    def staleness(self) -> int:
        """Inner steps since the most stale fragment was received."""
        return self._counted_steps - min(held.steps for held in self._held)

    def fragment_steps(self, fragment: int) -> int:
        """c_steps: inner steps since ``fragment`` was received."""
        return self._counted_steps - self._held[fragment].steps

    def fragment_tokens(self, fragment: int) -> int:
        """c_tokens: tokens in those steps."""
        return self._counted_tokens - self._held[fragment].tokens

    def capture(self, fragment: int) -> Capture:
        """A fragment's outer gradient as of now. This only copies; reading ``Capture.delta`` does the rest."""
        held = self._held[fragment]
        values, copied = self._reader.read(self.layout.fragments[fragment])
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
        return self._reader.host_buffer(self.layout.fragments[fragment])

    def apply(self, fragment: int, version: int, values: Tensor) -> None:
        """Overwrite a fragment with what was received; reset its counters. Optimizer moments stay (paper: alpha = 0).

        ``values``: flat f32 in host memory. It becomes the anchor, so the caller must not write to it any more.

        Raises:
            ValueError: ``values`` is of another size or type than the fragment.
        """
        self._write(fragment, values)
        self._held[fragment] = _Held(version, values, self._counted_steps, self._counted_tokens, self.data_position)

    def _write(self, fragment: int, values: Tensor) -> None:
        self._reader.write(self.layout.fragments[fragment], values)

    @abstractmethod
    def evaluate(self, replaced: Mapping[int, Tensor] = NOTHING) -> float:
        """Held-out loss of the global model: of the anchors, without the steps made since. Training is not affected.

        ``replaced``: by fragment, flat f32 host buffers to use in place of the anchor. If the model is broken the
        result is not finite.

        Raises:
            DataError: the data cannot be read.
            ModelError: training has changed more than trained parameters, so that this is not the others' model.
        """

    @abstractmethod
    def catch_up(self, steps: int, data_position: int) -> None:
        """Continue from the syncer's record of this learner, if that is further, so that no sequence is used twice."""

    def has_data(self) -> bool:
        """Whether the next batch has been dealt."""
        return True

    def jump(self) -> bool:
        """Go on with what was dealt instead of the rest of what it had, if anything was; returns whether it does."""
        return False

    @abstractmethod
    def start_over(self) -> None:
        """Drop the inner optimizer's state, which may be what diverged. The model is received as usual."""

    @abstractmethod
    def state(self) -> TrainerState:
        """A copy of what a restarted learner needs, in host memory; another thread may write it to disk.

        That thread waits until it is whole (`whole_copies`).

        Raises:
            OptimizerError, DataError: code of the user's own keeps what cannot be saved.
        """

    @abstractmethod
    def load_state(self, state: TrainerState) -> None:
        """Restore ``state``, before the first step. Fragments and their counters are not in it.

        Raises:
            KeyError, ValueError: it is of another model or inner optimizer.
        """

    def _anchors(self, replaced: Mapping[int, Tensor]) -> Mapping[str, Tensor]:
        """The global model's parameters by name, on the device."""
        flats = [replaced.get(index, held.anchor) for index, held in enumerate(self._held)]
        return whole_tensors(self.layout, [flat.to(self.device, non_blocking=True) for flat in flats])

    @property
    def _counted_steps(self) -> int:
        """With the one that has begun: what is copied out has its work, and what is received comes after it."""
        return self.steps + (self._begun_tokens is not None)

    @property
    def _counted_tokens(self) -> int:
        return self.tokens + (self._begun_tokens or 0)

    def _count_begun(self, *, skipped: bool) -> None:
        """Count the step that has begun, or, for what was received since neither, count it no more."""
        if not skipped:
            self.steps, self.tokens = self._counted_steps, self._counted_tokens
        self._begun_tokens = None
        for held in self._held if skipped else ():
            held.steps, held.tokens = min(held.steps, self.steps), min(held.tokens, self.tokens)

    def _count_before(self, steps: int, tokens: int) -> None:
        """Count what other processes have made: none of it since this one received a fragment."""
        self.steps += steps
        self.tokens += tokens
        for held in self._held:
            held.steps += steps
            held.tokens += tokens

    def _now(self, index: int) -> Tensor:
        values, copied = self._reader.read(self.layout.fragments[index])
        if copied is not None:
            copied.synchronize()
        return values
