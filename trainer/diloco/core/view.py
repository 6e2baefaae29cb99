"""A copy of the engine's state at one moment, for display."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import fsum

from diloco.core import accounting, healing
from diloco.core.recovery import Recoveries
from diloco.core.state import EngineState, LearnerRecord
from diloco.core.time_class import COMPUTING, TimeClass

_MERGED = (TimeClass.MERGED,)
OFTEN_LEFT_OUT = 2
"""Recent merges without a learner after which it is reported as left out (ours): a single one may be a bad batch."""


@dataclass(frozen=True, slots=True)
class LearnerView:
    """One learner, copied from its ``LearnerRecord`` at one moment: input of ``/status`` and of the run's report."""

    id: str
    state: str
    incarnation: int
    steps: int
    tokens: int
    merged_tokens: float
    step_seconds: float | None
    answer_seconds: float | None
    """Its usual time from the request to its complete outer gradient."""
    lead_steps: int
    """Inner steps before a launch at which it is asked."""
    missed: bool
    """It did not answer when it was last waited for, and has not answered since."""
    left_out: int
    """Merges made without its outer gradient because that was not credible, since the syncer started."""
    left_out_reason: str
    """Reason of the latest of them."""
    left_out_now: str
    """Why its outer gradients are repeatedly left out, in words that stay the same while it lasts; empty: they are not,
    or only one was."""
    resets: int
    """Times it had to start over from the global model because it had diverged."""
    diverged_reason: str
    """Why it was last reset or quarantined; empty: it was not, or has been merged often enough since."""
    quarantine_seconds: float | None
    """Time until its quarantine is over; None: it is in none."""
    blocked_seconds: float
    pushed_bytes: int
    loss: float | None
    restarts: int
    versions_behind: int
    """Merges, over all fragments, that it has not applied yet."""
    allotted_seconds: float
    """Since its first join, for as long as it is planned or in; absences count only if its pool has fewer learners than
    it must have."""
    time: Mapping[TimeClass, float]
    """How they were used, in seconds; every class is there."""
    goodput: float | None
    """Share of them in which it computed inner steps, merged or not."""
    merged: float | None
    """Share of them whose work is in the global model."""
    last_heard_at: float


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """One evaluation."""

    tokens: int
    loss: float
    at_seconds: float
    final: bool
    doubted: bool
    """It is not credible beside what the other learners report."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """The job."""

    phase: str
    phase_reason: str
    syncer_step: int
    """Merges done."""
    versions: tuple[int, ...]
    merged_tokens: float
    budget_tokens: int
    goodput: float | None
    """Learner-seconds of inner steps, merged or not, over learner-seconds the job was allotted. A learner counts from
    its first join on for as long as it is planned, away or not; in an elastic pool, absences count only while it has
    fewer learners than its minimum. Times in which the syncer was away do not count."""
    merged: float | None
    """Learner-seconds of inner steps that are in the global model, over the same learner-seconds."""
    time: Mapping[TimeClass, float]
    """How the learner-seconds of the job were used; every class is there."""
    finished: bool
    complete: bool
    learners: tuple[LearnerView, ...]
    """Without those that are withdrawn: neither planned nor admitted."""
    inner_steps: int
    """Of every learner, including those that are withdrawn."""
    trained_tokens: int
    """Tokens of these steps."""
    rounds_in_flight: int
    fragments_allowed: int
    """Fragments that may currently be in flight."""
    round_seconds: float | None
    """From a launch until a quorum of members trains on its result."""
    evaluations: tuple[EvaluationView, ...]
    quorum: int
    """Learners that must currently have sent a fragment."""
    quorum_wanted: int
    """``sync.quorum``: more than `quorum` if too few learners are left."""
    quorum_seconds: float | None
    sync_seconds: float | None
    merge_seconds: float | None
    """Recent duration of one merge."""
    elapsed_seconds: float
    recoveries: Recoveries
    """Learners that were lost and have recovered, since this start of the syncer."""


def view(state: EngineState, now: float) -> EngineView:
    """The view of a state."""
    everyone = state.ordered_learners
    times = {record.id: accounting.time_of(state, record, now) for record in everyone}
    time = {one: fsum(split[one] for split in times.values()) for one in TimeClass}
    return EngineView(
        phase=state.phase.value,
        phase_reason=state.phase_reason,
        syncer_step=state.merges,
        versions=tuple(state.versions),
        merged_tokens=state.merged_tokens,
        budget_tokens=state.options.budget_tokens,
        goodput=_share(time, COMPUTING),
        merged=_share(time, _MERGED),
        time=time,
        finished=state.finished,
        complete=state.phase == "Complete",
        learners=tuple(_learner(state, record, times[record.id], now) for record in everyone if state.counts(record)),
        inner_steps=sum(record.step for record in everyone),
        trained_tokens=sum(record.tokens for record in everyone),
        rounds_in_flight=sum(current.launched_at is not None for current in state.rounds.values()),
        fragments_allowed=state.in_flight.allowed,
        round_seconds=state.round_seconds.seconds,
        evaluations=tuple(
            EvaluationView(e.tokens, e.loss, e.at_seconds, e.final, e.doubted) for e in state.evaluations
        ),
        quorum=state.quorum,
        quorum_wanted=state.options.quorum,
        quorum_seconds=state.quorum_seconds.seconds,
        sync_seconds=state.sync_seconds.seconds,
        merge_seconds=state.merge_seconds.seconds,
        elapsed_seconds=state.elapsed(now),
        recoveries=state.recoveries.copy(),
    )


def _learner(state: EngineState, record: LearnerRecord, time: Mapping[TimeClass, float], now: float) -> LearnerView:
    behind = sum(max(0, current - max(0, held)) for held, current in zip(record.versions, state.versions, strict=False))
    return LearnerView(
        id=record.id,
        state=record.state.value,
        incarnation=record.incarnation,
        steps=record.step,
        tokens=record.tokens,
        merged_tokens=record.merged_tokens,
        step_seconds=record.step_seconds.seconds,
        answer_seconds=record.answer_seconds.mean,
        lead_steps=record.lead_steps,
        missed=record.missed,
        left_out=record.left_out,
        left_out_reason=record.left_out_reason,
        left_out_now=record.left_out_first_reason if record.left_out_lately >= OFTEN_LEFT_OUT else "",
        resets=record.standing.resets,
        diverged_reason=record.standing.reason,
        quarantine_seconds=healing.quarantine_seconds(state, record, now),
        blocked_seconds=record.blocked_seconds,
        pushed_bytes=record.pushed_bytes,
        loss=record.loss,
        restarts=record.restarts,
        versions_behind=behind,
        allotted_seconds=record.allotted(now),
        time=time,
        goodput=_share(time, COMPUTING),
        merged=_share(time, _MERGED),
        last_heard_at=record.last_heard_at,
    )


def _share(time: Mapping[TimeClass, float], classes: Collection[TimeClass]) -> float | None:
    given = fsum(time.values())
    return min(fsum(time[one] for one in classes) / given, 1.0) if given > 0 else None
