"""What the engine remembers between events: plain records, no behavior beyond reading them."""

from dataclasses import dataclass, field
from enum import StrEnum

from diloco.core.averages import MovingAverage
from diloco.core.events import FragmentArrived
from diloco.core.options import EngineOptions

INCARNATIONS_PER_EPOCH = 1_000_000
"""Incarnations are unique over syncer restarts: the epoch's number times this, plus a counter."""


class LearnerState(StrEnum):
    """Where a learner stands."""

    ABSENT = "Absent"
    """No session: not started, lost, or left."""
    LOADING = "Loading"
    """In, and still receiving the model."""
    TRAINING = "Training"
    """Makes steps."""
    STALLED = "Stalled"
    """Its connection lives, but it makes no steps: no participant until it does."""
    GIVEN_UP = "GivenUp"
    """Failed more often than the failure policy allows."""


PRESENT = (LearnerState.LOADING, LearnerState.TRAINING, LearnerState.STALLED)
WORKING = (LearnerState.TRAINING, LearnerState.STALLED)


@dataclass(slots=True)
class LearnerRecord:
    """All that is known of one learner."""

    id: str
    state: LearnerState = LearnerState.ABSENT
    incarnation: int = 0
    instance: str = ""
    superseded: list[str] = field(default_factory=list)
    """Processes that once had this id and must not come back; the latest few."""
    joins: int = 0
    left_cleanly: bool = False
    """Its latest session ended with a leave."""
    stopped: bool = False
    """It had left cleanly before the syncer itself stopped: that it comes back is no restart."""
    restarts: int = 0
    """Times a new process took over this id while the job ran."""
    clock: int = 0
    """Inner steps on the schedule; see `pace`."""
    step: int = 0
    tokens: int = 0
    data_position: int = 0
    loss: float | None = None
    blocked_seconds: float = 0.0
    step_seconds: MovingAverage = field(default_factory=MovingAverage)
    """Of this incarnation: a learner may come back on other hardware."""
    versions: list[int] = field(default_factory=list)
    """Version of each fragment it trains on; -1: none."""
    turn_steps: list[int] = field(default_factory=list)
    """Its step when each fragment last had its turn, or was loaded."""
    pushed_bytes: int = 0
    merged_tokens: float = 0.0
    """Tokens that reached the global model, averaged over fragments by their share of the model."""
    merged_seconds: float = 0.0
    """Seconds of inner steps whose tokens were merged."""
    given_seconds: float = 0.0
    """Seconds since it first joined, up to `given_since`."""
    given_since: float | None = None
    """Since when it counts; from its first join on it does for as long as it is planned, present or not."""
    last_heard_at: float = 0.0
    last_step_at: float = 0.0

    @property
    def present(self) -> bool:
        """It has a session."""
        return self.state in PRESENT

    @property
    def working(self) -> bool:
        """It has the model and may bring fragments."""
        return self.state in WORKING


@dataclass(slots=True)
class Round:
    """One fragment under way: asked for, waited for, merged."""

    step: int
    """Syncer step."""
    fragment: int
    version: int
    """The version its merge makes."""
    opened_at: float
    asked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """learner -> (incarnation, attempt) of the latest ask."""
    attempts: int = 0
    """Times unanswered asks were repeated."""
    arrived: dict[str, FragmentArrived] = field(default_factory=dict)
    declined: set[str] = field(default_factory=set)
    quorum_at: float | None = None
    closed_at: float | None = None
    """Members are frozen from here on."""

    @property
    def answers(self) -> int:
        """Learners that have brought the fragment or said that they have nothing to bring."""
        return len(self.arrived) + len(self.declined)


@dataclass(slots=True)
class EvaluationRecord:
    """One evaluation of the global model that came back."""

    tokens: int
    loss: float
    at_seconds: float
    """Since the first learner joined."""
    final: bool


@dataclass(slots=True)
class PendingEvaluation:
    """An evaluation that a learner is at."""

    number: int
    tokens: int
    final: bool
    learner: str
    incarnation: int
    versions: tuple[int, ...]


class Phase(StrEnum):
    """Where the job stands."""

    WAITING = "Waiting"
    """No learner has begun."""
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    """The budget is merged; rounds under way end and the final model is evaluated."""
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(slots=True)
class EngineState:
    """Everything."""

    options: EngineOptions
    epoch: int
    phase: Phase = Phase.WAITING
    phase_reason: str = "no learner has joined yet"
    next_incarnation: int = 1
    launched: int = 0
    """Syncer steps begun."""
    merges: int = 0
    """Syncer steps that made a new version."""
    versions: list[int] = field(default_factory=list)
    fragment_tokens: list[int] = field(default_factory=list)
    """Tokens merged into each fragment."""
    learners: dict[str, LearnerRecord] = field(default_factory=dict)
    """By id: everyone who is planned or has ever been in."""
    planned: frozenset[str] = frozenset()
    """Learners that the manifest has now. One that is not in it and has no session is withdrawn: its past counts, its
    absence does not."""
    rounds: dict[int, Round] = field(default_factory=dict)
    """In flight, by fragment."""
    closed_at: dict[int, float] = field(default_factory=dict)
    """When the round of each fragment's current version closed, until a learner has applied it."""
    quorum_seconds: MovingAverage = field(default_factory=MovingAverage)
    sync_seconds: MovingAverage = field(default_factory=MovingAverage)
    merge_seconds: MovingAverage = field(default_factory=MovingAverage)
    evaluations: list[EvaluationRecord] = field(default_factory=list)
    evaluation: PendingEvaluation | None = None
    evaluations_ordered: int = 0
    did_not_evaluate: set[str] = field(default_factory=set)
    """Learners that left the present evaluation unanswered."""
    next_evaluation_tokens: int = 0
    elapsed_seconds: float = 0.0
    """Since the first learner joined, up to `elapsed_since`; the syncer's own absences are not in it."""
    elapsed_since: float | None = None
    lease_timer_at: float | None = None

    @property
    def merged_tokens(self) -> float:
        """Tokens in the global model: the mean over fragments, weighted by their share of the model."""
        return sum(share * tokens for share, tokens in zip(self.options.shares, self.fragment_tokens, strict=True))

    @property
    def finished(self) -> bool:
        """Nothing more will happen."""
        return self.phase in (Phase.COMPLETE, Phase.FAILED)

    @property
    def ordered_learners(self) -> list[LearnerRecord]:
        """Learners by id: whatever is decided over several is decided in this order."""
        return [self.learners[name] for name in sorted(self.learners)]

    @property
    def counted_learners(self) -> list[LearnerRecord]:
        """Those of the ordered learners that are not withdrawn."""
        return [record for record in self.ordered_learners if self.counts(record)]

    def counts(self, record: LearnerRecord) -> bool:
        """Whether a learner is planned, or in all the same."""
        return record.id in self.planned or record.present

    def current(self, learner: str, incarnation: int) -> LearnerRecord | None:
        """The learner, if this is its current incarnation and it has a session."""
        record = self.learners.get(learner)
        if record is None or record.incarnation != incarnation or not record.present:
            return None
        return record

    def elapsed(self, now: float) -> float:
        """Seconds since the first learner joined."""
        return self.elapsed_seconds + (0.0 if self.elapsed_since is None else now - self.elapsed_since)
