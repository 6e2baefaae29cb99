"""What the engine's state consists of: plain records without behavior beyond reading them."""

from dataclasses import dataclass, field

from diloco.core.account.recovery import Recovering
from diloco.core.account.time_account import Account
from diloco.core.engine.events import FragmentArrived
from diloco.core.engine.members.credit import Credit
from diloco.core.engine.members.standing import Standing
from diloco.core.engine.rounds.averages import SizedSpread, StepAverage
from diloco.spec.names.learner_ids import pool_of
from diloco.spec.status.engine import PRESENT, LearnerState

ROUND_TIMER = "round/"
"""Prefix of the name of a round's timer; the fragment's number follows. Before the quorum the timer repeats unanswered
requests, after it the timer ends the wait."""
UNANSWERED_LIMIT = 3
"""So many rounds or requests without an answer, less those with one, and a learner no longer counts (ours)."""
WORKING = (LearnerState.TRAINING, LearnerState.STALLED)
"""States of a learner that has the model and may send fragments."""


@dataclass(slots=True)
class Request:
    """The latest request to a learner for a round's fragment."""

    incarnation: int
    version: int
    attempt: int
    since: float | None
    """When it was asked, or became ready after that; None: it has had nothing to send so far."""

    @property
    def key(self) -> tuple[int, int, int]:
        """As in `events.Attempt`."""
        return self.incarnation, self.version, self.attempt


@dataclass(slots=True)
class LearnerRecord:
    """The engine's own record of one learner, which events change; `view` makes its status from it."""

    id: str
    state: LearnerState = LearnerState.ABSENT
    incarnation: int = 0
    instance: str = ""
    superseded: list[str] = field(default_factory=list)
    """Processes that once had this id and must not return; the latest few."""
    joins: int = 0
    left_cleanly: bool = False
    """Its latest session ended with a leave, so that a new process is not a restart."""
    restarts: int = 0
    """Times a new process took over this id in the same pod, although the previous one had not left."""
    clock: int = 0
    """Inner steps on the schedule; see `schedule`."""
    step: int = 0
    tokens: int = 0
    data_position: int = 0
    loss: float | None = None
    pace: StepAverage = field(default_factory=StepAverage)
    """Of this process: a learner may return on other hardware."""
    earlier: StepAverage = field(default_factory=StepAverage)
    """Of the latest process before it that was measured."""
    credit: Credit = field(default_factory=Credit)
    answer_seconds: SizedSpread = field(default_factory=SizedSpread)
    """From the request, or being ready if that is later, to its complete payload; of this process."""
    missed_since: float | None = None
    """Since when it had been asked for what it was last waited for in vain; None: it has answered since."""
    unmerged: int = 0
    """Rounds that it had reached and that ended without its outer gradient, less its answers (`unanswered`)."""
    unanswered: int = 0
    """Times that a round without a quorum waited for it in vain, less its answers (`unanswered`)."""
    unanswered_since: float | None = None
    """Since when one of these has grown; None: it has answered in time since."""
    unanswered_reason: str = ""
    """Of the latest of them."""
    late: dict[int, Request] = field(default_factory=dict)
    """By fragment: the request in a round that closed without its answer."""
    lead_steps: int = 0
    """Inner steps before a launch at which it is asked for a fragment of mean size."""
    longest_lead_steps: int = 0
    """The same for the largest fragment."""
    versions: list[int] = field(default_factory=list)
    """Version of each fragment it trains on; -1: none."""
    turn_steps: list[int] = field(default_factory=list)
    """Its step when each fragment last had its turn, or was loaded."""
    received_steps: list[int] = field(default_factory=list)
    """Its step when it received each fragment."""
    received_tokens: list[float] = field(default_factory=list)
    merged_into: list[int] = field(default_factory=list)
    """Version of each fragment that its latest outer gradient went into, or was left out of; 0: none did."""
    counted_in: list[int] = field(default_factory=list)
    """Version of each fragment that its latest outer gradient is in; 0: none is."""
    frozen: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By fragment: the key of its latest outer gradient that was frozen for a merge."""
    left_out: int = 0
    """Merges made without its outer gradient because that was not credible, since the syncer started."""
    left_out_reason: str = ""
    left_out_lately: int = 0
    """How many of them are recent: reset once as many merges as there are fragments were made with it."""
    left_out_first_reason: str = ""
    merged_since_left_out: int = 0
    pushed_bytes: int = 0
    merged_tokens: float = 0.0
    """Averaged over fragments by their share of the model."""
    allotted_seconds: float = 0.0
    """Seconds since it first joined, up to `allotted_since`."""
    allotted_since: float | None = None
    """Since when it counts; None: it does not. From its first join on it counts for as long as it is planned, present
    or not; for the absent learners of an elastic pool, see `pools`."""
    account: Account = field(default_factory=Account)
    recovering: Recovering | None = None
    """Since its session was lost, until its work is merged again."""
    joined_at: float = 0.0
    """When its latest session began."""
    last_heard_at: float = 0.0
    idle_since: float = 0.0
    """Its last step, or when it was last heard from while something kept it from making one (`leases`)."""
    idle_seconds: float = 0.0
    """How long it has been heard from since `idle_since`."""
    standing: Standing = field(default_factory=Standing)
    pool: str = field(init=False, repr=False, compare=False)
    """``region/pool``, from its id."""

    def __post_init__(self) -> None:
        self.pool = pool_of(self.id)

    def allotted(self, now: float) -> float:
        """Seconds since it first joined during which it counted."""
        return self.allotted_seconds + (0.0 if self.allotted_since is None else now - self.allotted_since)

    @property
    def present(self) -> bool:
        """Whether it has a session."""
        return self.state in PRESENT

    @property
    def working(self) -> bool:
        """Whether it may send fragments."""
        return self.state in WORKING

    @property
    def counted_tokens_per_second(self) -> float:
        """As far as they count, as others are compared with them; 0: not measured."""
        most, pace = self.credit.most_tokens_per_second, self.measured
        speed = 0.0 if pace is None else pace.tokens_per_second
        return speed if most is None or speed <= most else most

    @property
    def measured(self) -> StepAverage | None:
        """Its steps as others are compared with them; None: no process of it has made two reports."""
        pace = self.pace if self.pace.reports > 1 else self.earlier
        return pace if pace.reports > 1 and pace.seconds else None

    @property
    def paces(self) -> bool:
        """Whether the schedule follows its clock: its outer gradients are merged."""
        return self.unmerged < UNANSWERED_LIMIT and not self.unanswering

    @property
    def unanswering(self) -> bool:
        """Whether no quorum counts it: rounds have waited for it in vain."""
        return self.unanswered >= UNANSWERED_LIMIT

    @property
    def step_seconds(self) -> float | None:
        """How long its inner steps take, as far as that counts; None until it has reported one."""
        seconds, least = self.pace.seconds, self.credit.least_step_seconds
        return least if seconds is not None and seconds < least else seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of its inner steps, as far as they count; 0 until it has reported a step."""
        most, speed = self.credit.most_tokens_per_second, self.pace.tokens_per_second
        return speed if most is None or speed <= most else most


@dataclass(slots=True)
class Round:
    """One fragment under way: requested, waited for, merged."""

    step: int
    """Syncer step."""
    fragment: int
    version: int
    """The version its merge makes."""
    launched_at: float | None = None
    """When it was due; None: learners with a lead are asked ahead of it."""
    reached: set[str] = field(default_factory=set)
    """Learners for which it was due when it was launched."""
    asked: dict[str, Request] = field(default_factory=dict)
    """By learner."""
    attempts: int = 0
    """Number of times that unanswered requests were repeated."""
    arrived: dict[str, FragmentArrived] = field(default_factory=dict)
    declined: dict[str, int] = field(default_factory=dict)
    """By learner that had nothing to send: its step then."""
    quorum_at: float | None = None
    grace_until: float = 0.0
    """End of the grace window, once there is a quorum."""
    deadlines: dict[str, float] = field(default_factory=dict)
    """Until when each awaited learner is waited for."""
    wakes_at: float | None = None
    """When its timer fires, once there is a quorum."""
    closed_at: float | None = None
    """When the members were frozen."""
    averaged: int = 0
    """Versions in the fragment's mean once this one is made."""
    missing: list[str] | None = field(init=False, repr=False, compare=False)
    """Once there is a quorum: learners that had not answered when the deadlines were set, the longest deadline last;
    None: not looked for since. It follows from the rest, and is no part of what is stored."""

    @property
    def timer(self) -> str:
        """Name of its timer."""
        return f"{ROUND_TIMER}{self.fragment}"

    def __post_init__(self) -> None:
        self.missing = None

    def awaits(self, learner: str) -> bool:
        """Whether the learner was asked and has not answered."""
        return learner in self.asked and learner not in self.arrived and learner not in self.declined

    def answered(self, learner: str) -> bool:
        """Whether the learner has sent the fragment or said that it has nothing to send."""
        return learner in self.arrived or learner in self.declined


@dataclass(slots=True)
class Return:
    """A merged fragment on its way back to the learners whose outer gradients are in it."""

    version: int
    launched_at: float
    closed_at: float
    needed: int
    """Members that must train on it before it is no longer in flight."""
    awaited: set[str]
    """Members that do not train on it yet."""
    applied: int = 0
    """Number of members that do."""
    received_by: set[str] = field(default_factory=set)
    """Learners that do, members or not."""

    @property
    def in_flight(self) -> bool:
        """Whether fewer members than the quorum train on it, and more may."""
        return self.applied < self.needed and bool(self.awaited)


@dataclass(slots=True)
class PendingEvaluation:
    """An evaluation that a learner is making."""

    number: int
    tokens: int
    final: bool
    learner: str
    incarnation: int
    since: float = 0.0
    """When it was ordered."""


@dataclass(slots=True)
class ElasticPool:
    """A pool that may have fewer learners than are planned."""

    minimum: int
    present: set[str] = field(default_factory=set)
    missed: list[str] = field(default_factory=list)
    """Absent learners whose time counts, as the pool has fewer than its minimum: those counted longest first."""

    @property
    def lacks(self) -> int:
        """Number of absent learners whose time should count and does not; below 0: that many too many count."""
        return max(0, self.minimum - len(self.present)) - len(self.missed)
