"""The engine's actions. The syncer or simulator carries them out in the order given and decides nothing of its own.

Every action has a reason, for the log, the tape, the metrics and ``diloco replay --explain``.
"""

from enum import StrEnum

from diloco.core.engine.events import Attempt, OfSession
from diloco.core.value import value


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


@value
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
    """The most sequences taken that the syncer knows of: the learner counts on from there."""
    reported_steps: int
    """Of its steps, those that it had reported when the syncer last heard from it."""
    tokens: int
    """In the reported steps."""
    reason: str
    reset: bool = False
    """It has diverged: besides the model, its inner optimizer and its error feedback start over."""
    counted_in: tuple[int, ...] = ()
    """By fragment: the version that its latest merged outer gradient is in; 0: none is."""


@value
class Refuse:
    """Refuse a joining process."""

    learner: str
    instance: str
    refusal: Refusal
    reason: str


@value
class Fence(OfSession):
    """End the session of an incarnation, and ignore everything that it still sends."""

    refusal: Refusal
    reason: str


@value
class AskFragment(Attempt):
    """Request a learner's outer gradient of a fragment."""

    reason: str


@value
class Member(OfSession):
    """One learner's part in a merge."""

    attempt: int
    base_version: int
    steps: int
    tokens: int
    weight: float
    """Normalized: the weights of a merge sum to one."""
    digest: str


@value
class Merge:
    """Merge these members, step the outer optimizer, and make the result the fragment's current version.

    Without members: make the mean of the fragment's last versions its current version.
    """

    fragment: int
    version: int
    members: tuple[Member, ...]
    """Sorted by learner id. Never changed once ordered."""
    reason: str
    averaged: int = 0
    """Number of versions in the fragment's mean, this one included; 0: there is no mean."""


@value
class Discard(Attempt):
    """Drop a payload that was received and will not be merged."""

    reason: str


@value
class Broadcast:
    """Tell these learners that a new version can be pulled."""

    fragment: int
    version: int
    learners: tuple[tuple[str, int, bool], ...]
    """(learner, incarnation, whether its outer gradient is in this version)."""
    reason: str


@value
class SetTimer:
    """Fire ``TimerFired(name)`` at ``at``; a timer of the same name is replaced."""

    name: str
    at: float


@value
class CancelTimer:
    """Cancel a timer."""

    name: str


@value
class Checkpoint:
    """Write a checkpoint of the state as it is now."""

    reason: str


@value
class Evaluate(OfSession):
    """Have a learner evaluate the global model."""

    evaluation: int
    tokens: int
    """Merged tokens at the time of the order."""
    versions: tuple[int, ...]
    final: bool
    """The exported model itself: evaluate exactly these versions."""
    reason: str


@value
class Finish:
    """The job is over: export the model, tell every learner."""

    complete: bool
    reason: str


class NoteKind(StrEnum):
    """What a note tells of."""

    MERGING_BEGINS = "MergingBegins"
    WORK_COUNTS = "WorkCounts"
    """From now on what is merged counts for the budget."""
    ROUND_OPENED = "RoundOpened"
    ROUND_WAITS = "RoundWaits"
    ROUND_ABANDONED = "RoundAbandoned"
    QUORUM_FOLLOWS = "QuorumFollows"
    REPEATED = "Repeated"
    """An outer gradient was received again."""
    LEARNER_EXCLUDED = "LearnerExcluded"
    """A round has closed without it."""
    MEMBER_LEFT_OUT = "MemberLeftOut"
    """What it sent was not credible."""
    LEARNERS_PLANNED = "LearnersPlanned"
    BUDGET_CHANGED = "BudgetChanged"
    LEARNER_TRAINS = "LearnerTrains"
    LEARNER_WAITS = "LearnerWaits"
    """It has the model, and is in quarantine or not planned."""
    LEARNER_LEFT = "LearnerLeft"
    LEARNER_STALLED = "LearnerStalled"
    LEARNER_QUARANTINED = "LearnerQuarantined"
    LEARNER_NOT_COUNTED = "LearnerNotCounted"
    """The quorum does not count it, as it leaves requests unanswered."""
    LEARNER_COUNTED = "LearnerCounted"
    """It answers, and the quorum counts it again."""
    PACE_FOLLOWS = "PaceFollows"
    """The schedule no longer follows its clock, or does again."""
    LEARNER_GIVEN_UP = "LearnerGivenUp"
    LEARNER_READMITTED = "LearnerReadmitted"
    EVALUATION_DROPPED = "EvaluationDropped"
    EVALUATION_DOUBTED = "EvaluationDoubted"
    EVALUATION_CONFIRMED = "EvaluationConfirmed"


@value
class Note:
    """A decision to do nothing, or one that is in no other action, with its reason."""

    kind: NoteKind
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
