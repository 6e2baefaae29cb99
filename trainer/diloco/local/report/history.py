"""A run's history as values, from which the summary, the report and the closing table are made.

Times are seconds of the run (see ``timeline.RunClock``); losses are in the task's unit; tokens are merged tokens of the
whole job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import fsum
from typing import Self

from diloco.core.account.time_class import COMPUTING, TimeClass
from diloco.core.sizes import all_reduce_bytes
from diloco.local.chaos.spec import Fault
from diloco.local.view.time_classes import TimeShares, goodput_of, shares_of
from diloco.spec.status.curves import MergeCurve
from diloco.spec.status.engine import OVER, LearnerStatus, RecoveryStatus
from diloco.spec.status.syncer import MeasuredLinkStatus, RegionBytes


class Life(StrEnum):
    """State of a process, from the supervisor's and the syncer's records."""

    STARTING = "starting"
    """Up to its first step: imports, data, loading the model."""
    TRAINING = "training"
    AWAY = "out of reach"
    """It runs without a session with the syncer. It may still train."""
    PAUSED = "paused"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span of time."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Span(Stretch):
    """A time in which a process was in one state."""

    life: Life


@dataclass(frozen=True, slots=True)
class LossPoint:
    """A loss at one time."""

    seconds: float
    tokens: float
    loss: float


@dataclass(frozen=True, slots=True)
class EvaluationPoint(LossPoint):
    """An evaluation of the global model."""

    final: bool
    doubted: bool = False
    """It is not credible beside what the other learners report, and none of them has confirmed it."""
    learner: str = ""
    """Who made it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The whole job at one time: learner-seconds count from its start."""

    seconds: float
    tokens: float
    allotted_seconds: float
    merged_seconds: float
    computing_seconds: float

    @classmethod
    def of(cls, seconds: float, tokens: float, time: Mapping[str, float] | Mapping[TimeClass, float]) -> Self:
        """A sample from seconds by class of time."""
        spent = {str(name): value for name, value in time.items()}
        computing = fsum(spent.get(one.value, 0.0) for one in COMPUTING)
        return cls(seconds, tokens, fsum(spent.values()), spent.get(TimeClass.MERGED.value, 0.0), computing)

    @property
    def merged(self) -> float | None:
        """Share of the time whose work is in the model; None if no time was given."""
        return self.merged_seconds / self.allotted_seconds if self.allotted_seconds else None

    @property
    def goodput(self) -> float | None:
        """Share of the time in which inner steps were computed; None if no time was given."""
        return min(1.0, self.computing_seconds / self.allotted_seconds) if self.allotted_seconds else None


@dataclass(frozen=True, slots=True)
class RegionSample:
    """Bytes by region at one time."""

    seconds: float
    counts: tuple[RegionBytes, ...]


@dataclass(frozen=True, slots=True)
class Incident:
    """An event of a process or a link."""

    seconds: float
    process: str
    text: str


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """A learner that was lost, and whose work was merged again at ``seconds``."""

    seconds: float
    recovery: RecoveryStatus

    @property
    def lost_at(self) -> float:
        """When it was lost, in seconds of the run."""
        return self.seconds - self.recovery.seconds


@dataclass(frozen=True, slots=True)
class LearnerHistory:
    """One learner over a whole run, for the report: from its status and the journals."""

    id: str
    steps: int
    tokens: int
    merged_tokens: float
    restarts: int
    allotted_seconds: float
    """Time from its first join to the end."""
    merged: float | None
    time: TimeShares
    tokens_per_second: float
    """Tokens over the time it trained."""
    losses: tuple[LossPoint, ...] = ()
    """Of the inner steps that were the latest ones when a row of the curves was written."""
    life: tuple[Span, ...] = ()
    left_out: int = 0
    """Merges made without its outer gradient because that was not credible, since the syncer's latest start."""
    left_out_reason: str = ""
    processes: int = 1

    @classmethod
    def of(cls, known: LearnerStatus, life: tuple[Span, ...], processes: int) -> Self:
        """From its status; curves are not in that."""
        shares, trained = shares_of(known.time_seconds), _trained_seconds(life)
        return cls(
            id=known.id,
            steps=known.steps,
            tokens=known.tokens,
            merged_tokens=known.merged_tokens,
            restarts=known.restarts,
            allotted_seconds=known.allotted_seconds,
            merged=shares.get(TimeClass.MERGED),
            time=shares,
            tokens_per_second=known.tokens / trained if trained > 0 else 0.0,
            life=life,
            left_out=known.left_out,
            left_out_reason=known.left_out_reason,
            processes=processes,
        )

    @property
    def goodput(self) -> float | None:
        """Share of its allotted time in which it computed inner steps, merged or not."""
        return goodput_of(self.time)


def _trained_seconds(life: Sequence[Span]) -> float:
    return sum(span.end - span.start for span in life if span.life is Life.TRAINING)


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The whole run."""

    job: str
    seconds: float
    phase: str
    """Complete, Failed, or the phase in which it was interrupted."""
    phase_reason: str
    budget_tokens: int
    merged_tokens: float
    syncer_steps: int
    parameters: int
    merged: float | None
    time: TimeShares
    learners: tuple[LearnerHistory, ...]
    """Those that are planned or admitted at the end."""
    evaluations: tuple[EvaluationPoint, ...] = ()
    merges: tuple[tuple[float, MergeCurve], ...] = ()
    """Some of the merges, with the time of their row of the curves."""
    samples: tuple[Sample, ...] = ()
    incidents: tuple[Incident, ...] = ()
    syncer_life: tuple[Span, ...] = ()
    cuts: tuple[tuple[str, Stretch], ...] = ()
    inner_steps: int = 0
    """Of all learners ever, including those that a scaled pool no longer has."""
    quorum: int = 0
    """Learners that had to send a fragment at the end; 0: not known."""
    quorum_wanted: int = 0
    """``sync.quorum``: more than ``quorum`` if learners were given up."""
    notes: tuple[str, ...] = ()
    bytes_by_region: tuple[RegionBytes, ...] = ()
    """At the end, as the syncer counted where it sent and received."""
    region_samples: tuple[RegionSample, ...] = ()
    measured_links: tuple[MeasuredLinkStatus, ...] = ()
    """What was measured of each region's link."""
    computing: str = ""
    """What the learners computed in and on; empty: not known."""
    recoveries: tuple[RecoveryPoint, ...] = ()
    faults: tuple[Fault, ...] = ()
    former: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)
    """Lives of learners that are no longer in the job, by id, up to when each was last there, from the journals."""

    @property
    def goodput(self) -> float | None:
        """Share of the allotted time in which inner steps were computed, merged or not."""
        return goodput_of(self.time)

    @property
    def over(self) -> bool:
        """Whether nothing will change any more."""
        return self.phase in OVER

    @property
    def complete(self) -> bool:
        """Whether the job's budget is merged and its model exported."""
        return self.phase == "Complete"

    @property
    def bytes_pushed(self) -> int:
        """Bytes from learners to the syncer."""
        return sum(one.up.total for one in self.bytes_by_region)

    @property
    def bytes_pulled(self) -> int:
        """Bytes from the syncer to learners."""
        return sum(one.down.total for one in self.bytes_by_region)

    @property
    def data_parallel_bytes(self) -> int:
        """Bytes that per-step data-parallel training of the same model would have sent for the same inner steps.

        See `all_reduce_bytes`.
        """
        count = len(self.learners)
        return round(self.inner_steps * all_reduce_bytes(self.parameters, count)) if count else 0

    @property
    def loss_start(self) -> float | None:
        """Loss of the first credible evaluation."""
        return self._believed[0].loss if self._believed else None

    @property
    def loss_end(self) -> float | None:
        """Loss of the last credible evaluation."""
        return self._believed[-1].loss if self._believed else None

    @property
    def _believed(self) -> list[EvaluationPoint]:
        return [evaluation for evaluation in self.evaluations if not evaluation.doubted]
