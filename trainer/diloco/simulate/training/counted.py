"""The work of a simulated run without computation: steps, tokens and bytes are counted, losses are zero.

The engine's decisions depend on who does what when and on sizes, not on values. So a counted run takes the same course
as one with tensors (`tests/unit/simulate/test_counted_runs.py` compares them).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from diloco.core.engine.actions import Merge
from diloco.core.fragments import Fragment, Layout
from diloco.core.sizes import F32, downlink_encoding, encoding_of
from diloco.core.value import value
from diloco.learner.exchange.residuals import Residual
from diloco.simulate.training.work import MergeOutcome, Payload, Work
from diloco.spec import JobSpec

if TYPE_CHECKING:
    from torch import Tensor

    from diloco.learner.training.capture import Capture
    from diloco.learner.training.fragment_trainer import StepResult, TrainerState

_NO_VALUES = cast("Tensor", None)
"""Stands for the values of a fragment: nothing reads them. torch is not loaded, as that takes longer than most runs."""


@value
class CountedStep:
    """See `StepResult`."""

    loss: float
    tokens: int
    skipped: bool = False


@value
class CountedCapture:
    """The counters of an outer gradient; see `Capture`."""

    fragment: int
    base_version: int
    steps: int
    tokens: int


@value
class CountedState:
    """See `TrainerState`."""

    steps: int
    tokens: int
    data_position: int


def layout_of_sizes(numels: Sequence[int]) -> Layout:
    """A layout of fragments with these numbers of elements and no tensors in them."""
    return Layout(tuple(Fragment(index, (), numel) for index, numel in enumerate(numels)))


def counted_work(spec: JobSpec, layout: Layout, *, loaded: bool = False) -> Work:
    """Counted training of ``spec`` with a model that has this ``layout``; ``loaded``: learners begin with it."""

    def new_trainer(learner: str) -> CountedTrainer:
        return CountedTrainer(
            len(layout.fragments), spec.pool_of(learner).batch_of(spec.training), spec.training.sequence_length
        )

    encoder = CountedEncoder(spec, layout)
    return Work(CountedModel(spec, layout, loaded=loaded), new_trainer, lambda _residuals: encoder)


class CountedTrainer:
    """See `work.Trainer`."""

    def __init__(self, fragments: int, batch_size: int, sequence_length: int) -> None:
        self._batch_size = batch_size
        self._sequence_length = sequence_length
        self._step = CountedStep(0.0, batch_size * sequence_length)
        self.versions = (0,) * fragments
        """Version held of each fragment."""
        self._since_steps = [0] * fragments
        self._since_tokens = [0] * fragments
        self.steps = 0
        self.tokens = 0
        self.data_position = 0
        self.metrics: Mapping[str, float] = {}

    @property
    def staleness(self) -> int:
        """Inner steps since the most stale fragment was received."""
        return self.steps - min(self._since_steps)

    def fragment_steps(self, fragment: int) -> int:
        """c_steps."""
        return self.steps - self._since_steps[fragment]

    def step(self, progress: float) -> "StepResult":
        """Count a step."""
        del progress
        self.steps += 1
        self.tokens += self._step.tokens
        self.data_position += self._batch_size
        return cast("StepResult", self._step)

    def capture(self, fragment: int) -> "Capture":
        """The counters of an outer gradient, without values."""
        tokens = self.tokens - self._since_tokens[fragment]
        steps, version = self.fragment_steps(fragment), self.versions[fragment]
        return cast("Capture", CountedCapture(fragment, version, steps, tokens))

    def apply(self, fragment: int, version: int, values: "Tensor") -> None:
        """Reset the fragment's counters."""
        del values
        self.versions = (*self.versions[:fragment], version, *self.versions[fragment + 1 :])
        self._since_steps[fragment], self._since_tokens[fragment] = self.steps, self.tokens

    def evaluate(self) -> float:
        """Zero: nothing is computed."""
        return 0.0

    def catch_up(self, steps: int, data_position: int) -> None:
        """As in the real trainer."""
        ahead_steps = max(0, steps - self.steps)
        ahead_tokens = max(0, data_position - self.data_position) * self._sequence_length
        self.steps += ahead_steps
        self.tokens += ahead_tokens
        self._since_steps = [since + ahead_steps for since in self._since_steps]
        self._since_tokens = [since + ahead_tokens for since in self._since_tokens]
        self.data_position = max(data_position, self.data_position)

    def start_over(self) -> None:
        """See `InnerTrainer`: there is no optimizer."""

    def state(self) -> "TrainerState":
        """The counters."""
        return cast("TrainerState", CountedState(self.steps, self.tokens, self.data_position))

    def load_state(self, state: "TrainerState") -> None:
        """Restore ``state``."""
        self.steps, self.tokens, self.data_position = state.steps, state.tokens, state.data_position
        self._since_steps = [state.steps] * len(self._since_steps)
        self._since_tokens = [state.tokens] * len(self._since_tokens)


class CountedEncoder:
    """See `work.Encoder`. It encodes nothing, and so loses nothing."""

    def __init__(self, spec: JobSpec, layout: Layout) -> None:
        encoding = encoding_of(spec.sync.compression, spec.sync.density)
        self._payload_bytes = [encoding.payload_bytes(fragment.numel) for fragment in layout.fragments]

    def encode(self, capture: "Capture", version: int) -> Payload:
        del version
        return Payload(self._payload_bytes[capture.fragment], "", None)

    def outcome(self, fragment: int, version: int, *, merged: bool) -> None:
        """See `work.Encoder`."""

    def session_begins(self, versions: Sequence[int], counted_in: Sequence[int]) -> None:
        """See `work.Encoder`."""

    def start_over(self) -> None:
        """See `work.Encoder`."""

    def residuals(self) -> Mapping[int, Residual]:
        return {}


class CountedModel:
    """See `work.GlobalModel`."""

    def __init__(self, spec: JobSpec, layout: Layout, *, loaded: bool = False) -> None:
        """``loaded``: the initial model takes no bytes."""
        self._layout = layout
        self._loaded = loaded
        self._downlink = downlink_encoding(spec.sync.downlink, spec.sync.density)
        self._versions = [0] * len(layout.fragments)

    def merge(self, order: Merge, payloads: Mapping[str, Payload]) -> MergeOutcome:
        del payloads
        self._versions[order.fragment] = order.version
        return MergeOutcome("")

    def values(self, fragment: int) -> "Tensor":
        del fragment
        return _NO_VALUES

    def pull_bytes(self, fragment: int, held_version: int | None) -> int:
        if self._loaded and not self._versions[fragment]:
            return 0
        has_the_one_before = held_version is not None and held_version == self._versions[fragment] - 1
        encoding = self._downlink if has_the_one_before else F32
        return encoding.payload_bytes(self._layout.fragments[fragment].numel)
