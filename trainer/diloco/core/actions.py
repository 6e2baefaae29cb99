"""The engine's actions. The syncer or simulator carries them out in the order given and decides nothing of its own.

Every action has a reason, for the log, the tape, the metrics and ``diloco replay --explain``.
"""

from dataclasses import dataclass
from enum import StrEnum


class Refusal(StrEnum):
    """Why a learner is not, or no longer, admitted. The learner acts on it."""

    SUPERSEDED = "Superseded"
    """Another process has joined with this id since: this one must stop."""
    UNKNOWN_LEARNER = "UnknownLearner"
    """The job has no learner of this id: stop."""
    LEASE_EXPIRED = "LeaseExpired"
    """It was silent too long and was given up: join again."""
    FINISHED = "Finished"
    """The job is complete: stop, all is well."""
    GIVEN_UP = "GivenUp"
    """It failed more often than the failure policy allows: stop."""
    STUCK = "Stuck"
    """Its process is alive but makes no steps: end, so that a new process takes its place."""
    RESET = "Reset"
    """It has diverged: join again, and start over from the global model."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Admit a learner."""

    learner: str
    instance: str
    incarnation: int
    load: tuple[int, ...]
    """Fragments it must receive before it trains, in this order; empty for one that only lost its connection."""
    versions: tuple[int, ...]
    """The vector clock: current version of every fragment."""
    steps: int
    data_position: int
    """The furthest position in its shard that the syncer knows: it must not read earlier sequences again."""
    reason: str
    reset: bool = False
    """It has diverged: besides the model, its inner optimizer and its error feedback start over."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse a joining process."""

    learner: str
    instance: str
    refusal: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class Fence:
    """End the session of an incarnation, and ignore everything that it still sends."""

    learner: str
    incarnation: int
    refusal: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class AskFragment:
    """Request a learner's outer gradient of a fragment."""

    learner: str
    incarnation: int
    fragment: int
    version: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Member:
    """One learner's part in a merge."""

    learner: str
    incarnation: int
    attempt: int
    base_version: int
    steps: int
    tokens: int
    weight: float
    """Normalized: the weights of a merge sum to one."""
    digest: str


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge these members, step the outer optimizer, and make the result the fragment's current version."""

    fragment: int
    version: int
    members: tuple[Member, ...]
    """Sorted by learner id. Never changed once ordered."""
    reason: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop a payload that was received and will not be merged."""

    learner: str
    incarnation: int
    fragment: int
    version: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Tell these learners that a new version can be pulled."""

    fragment: int
    version: int
    learners: tuple[tuple[str, int, bool], ...]
    """(learner, incarnation, whether its outer gradient is in this version)."""
    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire ``TimerFired(name)`` at ``at``; a timer of the same name is replaced."""

    name: str
    at: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel a timer."""

    name: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Write a checkpoint of the state as it is now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Have a learner evaluate the global model."""

    learner: str
    incarnation: int
    evaluation: int
    tokens: int
    """Merged tokens at the time of the order."""
    versions: tuple[int, ...]
    """Versions of the model to evaluate."""
    final: bool
    """The exported model itself: evaluate exactly these versions."""
    reason: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over: export the model, tell every learner."""

    complete: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A decision to do nothing, or one that is in no other action, with its reason."""

    subject: str
    """Machine-readable kind: ``RoundOpened``, ``RoundWaits``, ``LearnerExcluded``, ``LearnerStalled`` and so on."""
    reason: str
    learner: str = ""
    fragment: int = -1


Action = (
    Admit
    | Refuse
    | Fence
    | AskFragment
    | Merge
    | Discard
    | Broadcast
    | SetTimer
    | CancelTimer
    | Checkpoint
    | Evaluate
    | Finish
    | Note
)
