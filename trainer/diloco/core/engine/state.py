"""The engine's state between events: records, and what reading several of them at once gives."""

from dataclasses import dataclass, field
from operator import mul

from diloco.core.account.recovery import NONE_YET
from diloco.core.engine.events import BudgetChanged, PoolTerms
from diloco.core.engine.options import EngineOptions
from diloco.core.engine.records import ElasticPool, LearnerRecord, PendingEvaluation, Request, Return, Round
from diloco.core.engine.roster import Roster
from diloco.core.engine.rounds.averages import MovingAverage
from diloco.core.engine.rounds.leads import Leads
from diloco.core.engine.rounds.overlap import FragmentsInFlight
from diloco.spec.status.engine import OVER, PRESENT, EvaluationStatus, LearnerState, Phase, RecoveriesStatus

INCARNATIONS_PER_EPOCH = 1_000_000
"""Incarnations are unique over syncer restarts: the epoch's number times this, plus a counter."""


@dataclass(slots=True)
class EngineState:
    """The engine's whole state."""

    options: EngineOptions
    epoch: int
    overlap: FragmentsInFlight
    phase: Phase = Phase.WAITING
    phase_reason: str = "no learner has joined yet"
    next_incarnation: int = 1
    launched: int = 0
    """Syncer steps begun."""
    versions: list[int] = field(default_factory=list)
    fragment_tokens: list[int] = field(default_factory=list)
    """Tokens merged into each fragment."""
    averaged: list[int] = field(default_factory=list)
    """Number of each fragment's last versions in its mean (`last_versions`)."""
    turns_at: list[float | None] = field(default_factory=list)
    """When each fragment last had its turn; None: not since the syncer started."""
    learners: dict[str, LearnerRecord] = field(default_factory=dict)
    """By id: every learner that is planned or was ever admitted."""
    planned: frozenset[str] = frozenset()
    """Learners in the current manifest. One that is not in it and has no session is withdrawn: its work counts, its
    absence does not."""
    pools: frozenset[str] = frozenset()
    """``region/pool`` of every pool in the current manifest: a learner of one is admitted even before its index is
    planned, one of another pool is not."""
    elastic: dict[str, ElasticPool] = field(default_factory=dict)
    """The elastic pools of the current manifest, by ``region/pool``."""
    terms: dict[str, PoolTerms] = field(default_factory=dict)
    """What the current manifest says about pools' speeds, by ``region/pool``."""
    begun: bool = False
    """Merging has begun; see `beginning`, also for the next two."""
    confirmed: bool = False
    """What is merged counts for the budget."""
    withheld: list[int] = field(default_factory=list)
    """Tokens merged into each fragment that do not count yet."""
    rounds: dict[int, Round] = field(default_factory=dict)
    """By fragment: in flight, or asked for ahead."""
    asked_before: dict[int, dict[str, Request]] = field(default_factory=dict)
    """By fragment: requests for the next version in rounds that were abandoned. An attempt number is never reused."""
    returning: dict[int, Return] = field(default_factory=dict)
    """The current version of each fragment, until every member trains on it."""
    leads: dict[float, Leads] = field(default_factory=dict)
    """By size of a fragment relative to the mean: how early to ask each learner, since the latest launch."""
    quorum_seconds: MovingAverage = field(default_factory=MovingAverage)
    """From a launch until a quorum has answered."""
    sync_seconds: MovingAverage = field(default_factory=MovingAverage)
    """From closing a round until the last member trains on its result."""
    round_seconds: MovingAverage = field(default_factory=MovingAverage)
    """From a launch until a quorum of members trains on its result."""
    merge_seconds: MovingAverage = field(default_factory=MovingAverage)
    evaluations: list[EvaluationStatus] = field(default_factory=list)
    evaluation: PendingEvaluation | None = None
    evaluations_ordered: int = 0
    did_not_evaluate: list[str] = field(default_factory=list)
    """Learners that failed the current evaluation: the latest one last."""
    silent_evaluators: list[str] = field(default_factory=list)
    """Learners that let the time for an evaluation pass, until they answer one: the latest one last."""
    evaluation_seconds: dict[str, float] = field(default_factory=dict)
    """By learner: how long its latest evaluation took."""
    doubted_learners: set[str] = field(default_factory=set)
    """Learners whose evaluation of the current model is in doubt; another one is asked."""
    next_evaluation_tokens: int = 0
    budget: BudgetChanged | None = None
    """As changed in this epoch; None: as the options have it."""
    elapsed_seconds: float = 0.0
    """Since the first learner joined, up to `elapsed_since`; without times in which the syncer was away."""
    elapsed_since: float | None = None
    lease_timer_at: float | None = None
    recoveries: RecoveriesStatus = NONE_YET
    """Learners that were lost and have recovered, since this start of the syncer."""
    gone: dict[str, bool] = field(default_factory=dict)
    """Within one event: learners for which no round waits from now on, and whether because they have diverged."""
    fewer_left: bool = False
    """Within one event: learners were given up or quarantined, so the quorum may follow."""
    roster: Roster = field(init=False, repr=False, compare=False)
    """Follows from the rest; no part of what is stored."""

    _merged_tokens: float | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._merged_tokens = None
        self.roster = Roster(self)

    def becomes(self, record: LearnerRecord, state: LearnerState) -> None:
        """Change a learner's state, after all else that changes with it."""
        record.state = state
        self.roster.place(record)

    def end(self, current: Round) -> None:
        """End a round, merged or not."""
        del self.rounds[current.fragment]
        self.roster.asked_ahead_at = None

    @property
    def merges(self) -> int:
        """Syncer steps that made a new version."""
        return sum(self.versions)

    @property
    def budget_tokens(self) -> int:
        """Merged tokens at which the job ends."""
        return self.options.budget_tokens if self.budget is None else self.budget.tokens

    @property
    def evaluate_every_tokens(self) -> int:
        """Merged tokens from one evaluation to the next."""
        return (self.options if self.budget is None else self.budget).evaluate_every_tokens

    @property
    def merged_tokens(self) -> float:
        """Tokens in the global model: the mean over fragments, weighted by their share of the model."""
        if self._merged_tokens is None:
            self._merged_tokens = sum(map(mul, self.options.shares, self.fragment_tokens), 0.0)
        return self._merged_tokens

    def count_tokens(self, fragment: int, tokens: int) -> None:
        """Count tokens merged into a fragment, as soon as any count."""
        if not self.confirmed:
            self.withheld[fragment] += tokens
            return
        self.fragment_tokens[fragment] += tokens
        self._merged_tokens = None

    @property
    def quorum(self) -> int:
        """K, or as many as are left."""
        return self.roster.quorum

    def usual_answer_seconds(self, record: LearnerRecord, fragment: int) -> float | None:
        """How long a learner usually takes to send a fragment of this size; None: never measured."""
        answer = record.answer_seconds
        return None if answer.mean is None else answer.of(self.options.sizes[fragment])

    @property
    def quorum_step_seconds(self) -> float:
        """xi_step: an inner step of the slowest learner that counts towards the quorum; 0 if none is measured."""
        steps = self.roster.step_seconds.ascending
        return steps[min(self.roster.quorum, len(steps)) - 1] if steps else 0.0

    @property
    def finished(self) -> bool:
        """Whether the job is over."""
        return self.phase in OVER

    @property
    def ordered_learners(self) -> list[LearnerRecord]:
        """Learners by id: decisions over several are made in this order."""
        return [self.learners[name] for name in sorted(self.learners)]

    @property
    def counted_learners(self) -> list[LearnerRecord]:
        """The ordered learners without those that are withdrawn."""
        return [record for record in self.ordered_learners if self.counts(record)]

    def counts(self, record: LearnerRecord) -> bool:
        """Whether a learner's time counts: it is planned, or has a session all the same."""
        return record.id in self.planned or record.present

    def is_ready(self, record: LearnerRecord, fragment: int) -> bool:
        """Whether a learner has something to send that can be merged.

        It trains, it holds the version that its latest outer gradient went into and none that is too old, and it has
        made a step since it received that.
        """
        held = record.versions[fragment]
        return (
            record.state == LearnerState.TRAINING
            and record.step > record.received_steps[fragment]
            and held >= record.merged_into[fragment]
            and held >= self.versions[fragment] - self.options.max_version_lag
        )

    def at_bound(self, record: LearnerRecord) -> bool:
        """Whether a learner has made so many steps without receiving some fragment that it must wait for it."""
        return self.staleness(record) >= self.options.max_staleness_steps

    def waits_at_bound(self, record: LearnerRecord) -> bool:
        """Whether a learner that trains makes no step before a fragment is merged."""
        return record.state == LearnerState.TRAINING and self.at_bound(record)

    def staleness(self, record: LearnerRecord) -> int:
        """Inner steps that a learner has made since it received the fragment that it received first."""
        return record.step - min(record.received_steps, default=record.step)

    def evaluates(self, record: LearnerRecord) -> bool:
        """Whether a learner has been told to evaluate the model."""
        return self.evaluation is not None and self.evaluation.learner == record.id

    def opened(self, step: int) -> Round:
        """The round of a syncer step, which begins if it has not."""
        fragment = self.options.schedule.fragment(step)
        return self.rounds.setdefault(fragment, Round(step, fragment, self.versions[fragment] + 1))

    def current(self, learner: str, incarnation: int) -> LearnerRecord | None:
        """The learner, if this is its current incarnation and it has a session."""
        record = self.learners.get(learner)
        if record is None or record.incarnation != incarnation or record.state not in PRESENT:
            return None
        return record

    def elapsed(self, now: float) -> float:
        """Seconds since the first learner joined."""
        return self.elapsed_seconds + (0.0 if self.elapsed_since is None else now - self.elapsed_since)
