"""The engine's state at one moment, in the form of the job's status."""

from collections.abc import Collection, Mapping
from math import fsum, isfinite

from diloco.core.account.time_class import COMPUTING, TimeClass
from diloco.core.engine.members import accounting, divergence, standing
from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import EngineStatus, LearnerState, LearnerStatus

OFTEN_LEFT_OUT = 2
"""Recent merges without a learner after which it is reported as left out (ours): a single one may be a bad batch."""


def view(state: EngineState, now: float) -> EngineStatus:
    """The view of a state."""
    everyone = state.ordered_learners
    times = {record.id: accounting.time_of(state, record, now) for record in everyone}
    time = {one: fsum(split[one] for split in times.values()) for one in TimeClass}
    against = _against(state)
    losses = [
        record.loss
        for record in state.counted_learners
        if record.state == LearnerState.TRAINING and record.loss is not None and isfinite(record.loss)
    ]
    believed = [evaluation.loss for evaluation in state.evaluations if not evaluation.doubted]
    return EngineStatus(
        phase=state.phase,
        phase_reason=state.phase_reason,
        syncer_step=state.merges,
        versions=tuple(state.versions),
        merged_tokens=state.merged_tokens,
        budget_tokens=state.budget_tokens,
        train_loss=fsum(losses) / len(losses) if losses else None,
        eval_loss=believed[-1] if believed else None,
        evaluations=tuple(state.evaluations),
        goodput=_share(time, COMPUTING),
        merged=_share(time, (TimeClass.MERGED,)),
        time_seconds={one.value: seconds for one, seconds in time.items()},
        elapsed_seconds=state.elapsed(now),
        rounds_in_flight=sum(current.launched_at is not None for current in state.rounds.values()),
        fragments_allowed=state.overlap.allowed,
        merge_seconds=state.merge_seconds.seconds,
        round_seconds=state.round_seconds.seconds,
        learners=tuple(
            _learner(state, record, times[record.id], now, against=record.id in against)
            for record in everyone
            if state.counts(record)
        ),
        inner_steps=sum(record.step for record in everyone),
        trained_tokens=sum(record.tokens for record in everyone),
        quorum=state.quorum,
        quorum_wanted=state.options.quorum,
        recoveries=state.recoveries,
    )


def _against(state: EngineState) -> frozenset[str]:
    """Learners that point against the others merge after merge.

    One that turns the others' sum round pulls their cosines below 0 too, but its own is far lower. So those are named
    whose cosine is at least half as far below 0 as the lowest.
    """
    fragments = state.options.schedule.fragments
    found = {
        record.id: record.standing.agreement
        for record in state.counted_learners
        if record.standing.agreement is not None and standing.is_against(record.standing, fragments)
    }
    lowest = min(found.values(), default=0.0)
    return frozenset(name for name, agreement in found.items() if agreement <= lowest / 2)


def _learner(
    state: EngineState, record: LearnerRecord, time: Mapping[TimeClass, float], now: float, *, against: bool
) -> LearnerStatus:
    behind = sum(max(0, current - max(0, held)) for held, current in zip(record.versions, state.versions, strict=False))
    return LearnerStatus(
        id=record.id,
        state=record.state.value,
        incarnation=record.incarnation,
        steps=record.step,
        tokens=record.tokens,
        merged_tokens=record.merged_tokens,
        step_seconds=record.pace.seconds,
        counted_share=record.credit.share(record.pace),
        answer_seconds=record.answer_seconds.mean,
        lead_steps=record.lead_steps,
        missed=record.missed_since is not None,
        versions_behind=behind,
        pushed_bytes=record.pushed_bytes,
        restarts=record.restarts,
        loss=record.loss if record.loss is not None and isfinite(record.loss) else None,
        last_heard_seconds=max(0.0, now - record.last_heard_at) if record.incarnation else None,
        left=record.left_cleanly,
        loading_seconds=now - record.joined_at if record.state == LearnerState.LOADING else None,
        time_seconds={one.value: seconds for one, seconds in time.items()},
        left_out=record.left_out,
        left_out_reason=record.left_out_reason,
        left_out_now=record.left_out_first_reason if record.left_out_lately >= OFTEN_LEFT_OUT else "",
        unanswered_now=_unanswered_now(state, record, now),
        resets=record.standing.resets,
        diverged_reason=record.standing.reason,
        agreement=record.standing.agreement,
        against=against,
        quarantine_seconds=divergence.quarantine_seconds(state, record, now),
    )


def _unanswered_now(state: EngineState, record: LearnerRecord, now: float) -> str:
    """Why a learner does not count. What ends within a lease is no news: its link may be slow for a moment."""
    since = record.unanswered_since
    lasts = since is not None and now - since >= state.options.lease_seconds
    if not record.unanswering and not (record.working and lasts and not record.paces):
        return ""
    return "" if record.state in (LearnerState.GIVEN_UP, LearnerState.QUARANTINED) else record.unanswered_reason


def _share(time: Mapping[TimeClass, float], classes: Collection[TimeClass]) -> float | None:
    given = fsum(time.values())
    return min(fsum(time[one] for one in classes) / given, 1.0) if given > 0 else None
