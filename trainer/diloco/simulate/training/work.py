"""Interfaces between a simulated run and its training, which is real or only counted.

``tensors`` trains a model and merges its fragments; ``counted`` only counts steps and bytes, so that a run of any model
on any links takes seconds. The engine, the links and the clock are the same, and so are its decisions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from diloco.core.engine.actions import Merge
from diloco.core.engine.events import Cosine, LeftOut
from diloco.core.value import value
from diloco.learner.exchange.residuals import Residual

if TYPE_CHECKING:
    from torch import Tensor

    from diloco.learner.training.capture import Capture
    from diloco.learner.training.fragment_trainer import StepResult, TrainerState


@value
class Payload:
    """An encoded outer gradient."""

    size_bytes: int
    digest: str
    values: "Tensor | None"
    """uint8, flat; None if only sizes are counted."""


@value
class MergeOutcome:
    """The result of a merge."""

    digest: str
    failed: bool = False
    """Whether the version has the values of the one before."""
    left_out: tuple[LeftOut, ...] = ()
    cosines: tuple[Cosine, ...] = ()


class Trainer(Protocol):
    """A learner's training: see `diloco.learner.training.trainer.InnerTrainer`."""

    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def tokens(self) -> int: ...  # noqa: D102
    @property
    def data_position(self) -> int: ...  # noqa: D102
    @property
    def versions(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def staleness(self) -> int: ...  # noqa: D102
    def fragment_steps(self, fragment: int) -> int: ...  # noqa: D102
    def step(self, progress: float) -> "StepResult": ...  # noqa: D102
    def capture(self, fragment: int) -> "Capture": ...  # noqa: D102
    def apply(self, fragment: int, version: int, values: "Tensor") -> None: ...  # noqa: D102
    def evaluate(self) -> float: ...  # noqa: D102
    def catch_up(self, steps: int, data_position: int) -> None: ...  # noqa: D102
    def start_over(self) -> None: ...  # noqa: D102
    def state(self) -> "TrainerState": ...  # noqa: D102
    def load_state(self, state: "TrainerState") -> None: ...  # noqa: D102


class Encoder(Protocol):
    """Encodes a learner process's outer gradients, and keeps what the encoding has lost so far."""

    def encode(self, capture: "Capture", version: int) -> Payload:
        """The outer gradient of a fragment, for the merge that makes ``version``."""

    def outcome(self, fragment: int, version: int, *, merged: bool) -> None:
        """Note that ``version`` is made; ``merged``: the outer gradient that was encoded for it is in it."""

    def session_begins(self, versions: Sequence[int], counted_in: Sequence[int]) -> None:
        """Note that a session begins; see `Residuals.session_begins`."""

    def start_over(self) -> None:
        """Forget what encodings have lost: the learner starts over from the global model."""

    def residuals(self) -> Mapping[int, Residual]:
        """What the encoding has lost, by fragment, for the learner's checkpoint."""


class GlobalModel(Protocol):
    """The global model: the syncer's fragments."""

    def merge(self, order: Merge, payloads: Mapping[str, Payload]) -> MergeOutcome:
        """Carry out a merge; ``payloads`` by learner."""

    def values(self, fragment: int) -> "Tensor":
        """The current version, flat f32; never written to again."""

    def pull_bytes(self, fragment: int, held_version: int | None) -> int:
        """Bytes of the current version for a learner that holds this version (None: it does not say)."""


@dataclass(frozen=True)
class Work:
    """The training of one run."""

    model: GlobalModel
    new_trainer: Callable[[str], Trainer]
    """Creates the trainer of a starting process, given its learner's id."""
    new_encoder: Callable[[Mapping[int, Residual]], Encoder]
    """Creates an encoder from the residuals of the learner's checkpoint."""
