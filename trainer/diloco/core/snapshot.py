"""Converts the engine's state to plain JSON for checkpoints, and back.

It does not include sessions, rounds under way and timers: after a restart learners join again, and a fragment that was
under way is due again within H inner steps. Clocks differ between processes, so durations are stored, not moments. JSON
has no numbers that are not finite, which losses of a diverged model are: they are stored as text.
"""

from dataclasses import asdict, fields
from math import fsum, isfinite, nan
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from diloco.core import healing
from diloco.core.averages import MovingAverage
from diloco.core.divergence import Standing
from diloco.core.options import EngineOptions
from diloco.core.overlap import FragmentsInFlight
from diloco.core.state import ElasticPool, EngineState, EvaluationRecord, LearnerRecord
from diloco.core.time_account import Account
from diloco.core.time_class import TimeClass
from diloco.core.time_spent import TimeSpent
from diloco.spec.learner_ids import pool_of
from diloco.spec.syncer_status import LearnerState, Phase

FORMAT = 1
_REJOINING = "rejoining"
"""Among what a process spent: the part of the class ``loading`` that is ``rejoining``."""


class SnapshotError(ValueError):
    """A value is not a snapshot, or is of another job."""


class LaterSnapshotError(SnapshotError):
    """A later version of diloco has written the snapshot, which is not damaged."""


def _plain(value: float) -> float | str:
    return value if isfinite(value) else str(value)


def _loss(value: object) -> object:
    return nan if value is None else value


def _seconds(value: object) -> object:
    return 0.0 if value is None else value


# Earlier versions wrote null for values that are not finite: there was no loss, or a sum of times had overflowed.
_AsText = PlainSerializer(_plain, return_type=float | str)
_Number = Annotated[float, _AsText]
_Loss = Annotated[float, BeforeValidator(_loss), _AsText]
_Seconds = Annotated[float, BeforeValidator(_seconds), _AsText]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Account(_Model):
    """How a learner's allotted time was used. Absent in snapshots of earlier versions."""

    step: int
    spent: dict[str, _Seconds]
    seconds: dict[TimeClass, _Seconds]


class _Standing(_Model):
    """Of a learner that has diverged. Absent otherwise, and in snapshots of earlier versions."""

    reset_due: bool
    on_trial: bool
    merged_on_trial: int
    resets: int
    quarantines: int
    quarantine_seconds: _Number | None
    """Time that is left of it, so that a pause of the syncer does not shorten it."""
    reason: str


class _Learner(_Model):
    instance: str
    superseded: list[str]
    joins: int
    left_cleanly: bool
    restarts: int
    step: int
    tokens: int
    data_position: int
    loss: _Number | None
    blocked_seconds: _Seconds
    pushed_bytes: int
    merged_tokens: _Number
    merged_seconds: _Seconds
    allotted_seconds: _Seconds
    given_up: bool
    account: _Account | None = None
    standing: _Standing | None = None


class _Evaluation(_Model):
    tokens: int
    loss: _Loss
    at_seconds: _Number
    final: bool
    doubted: bool = False


class _Snapshot(_Model):
    format: int = Field(ge=FORMAT, le=FORMAT)
    phase: Phase
    phase_reason: str
    launched: int = Field(ge=0)
    merges: int = Field(ge=0)
    versions: list[int]
    fragment_tokens: list[int]
    learners: dict[str, _Learner]
    evaluations: list[_Evaluation]
    evaluations_ordered: int
    next_evaluation_tokens: int
    elapsed_seconds: _Number
    quorum_seconds: _Number | None
    sync_seconds: _Number | None
    merge_seconds: _Number | None


def take(state: EngineState, now: float) -> dict[str, Any]:
    """The state at ``now`` as plain JSON."""
    taken = _Snapshot(
        format=FORMAT,
        phase=state.phase,
        phase_reason=state.phase_reason,
        launched=state.launched,
        merges=state.merges,
        versions=state.versions,
        fragment_tokens=state.fragment_tokens,
        learners={record.id: _learner(state, record, now) for record in state.ordered_learners},
        evaluations=[
            _Evaluation(tokens=e.tokens, loss=e.loss, at_seconds=e.at_seconds, final=e.final, doubted=e.doubted)
            for e in state.evaluations
        ],
        evaluations_ordered=state.evaluations_ordered,
        next_evaluation_tokens=state.next_evaluation_tokens,
        elapsed_seconds=state.elapsed(now),
        quorum_seconds=state.quorum_seconds.seconds,
        sync_seconds=state.sync_seconds.seconds,
        merge_seconds=state.merge_seconds.seconds,
    ).model_dump(mode="json")
    for learner in taken["learners"].values():
        if learner["standing"] is None:  # an earlier version can then read it
            del learner["standing"]
    return taken


def _learner(state: EngineState, record: LearnerRecord, now: float) -> _Learner:
    kept = record.account.kept()
    spent = asdict(record.account.spent)
    # A version without the class ignores this name, and would refuse the class: so the snapshot stays readable there.
    if rejoining := kept.pop(TimeClass.REJOINING):
        kept[TimeClass.LOADING] += rejoining
        spent[_REJOINING] = rejoining
    return _Learner(
        instance=record.instance,
        superseded=record.superseded,
        joins=record.joins,
        left_cleanly=record.left_cleanly or record.stopped,
        restarts=record.restarts,
        step=record.step,
        tokens=record.tokens,
        data_position=record.data_position,
        loss=record.loss,
        blocked_seconds=record.blocked_seconds,
        pushed_bytes=record.pushed_bytes,
        merged_tokens=record.merged_tokens,
        merged_seconds=kept[TimeClass.MERGED],
        allotted_seconds=record.allotted(now),
        given_up=record.state == LearnerState.GIVEN_UP,
        account=_Account(step=record.account.step, spent=spent, seconds=kept),
        standing=_standing(record.standing, healing.quarantine_seconds(state, record, now)),
    )


def _standing(standing: Standing, quarantine_seconds: float | None) -> _Standing | None:
    if not (standing.resets or standing.quarantines):
        return None
    return _Standing(
        reset_due=standing.reset_due,
        on_trial=standing.on_trial,
        merged_on_trial=standing.merged_on_trial,
        resets=standing.resets,
        quarantines=standing.quarantines,
        quarantine_seconds=quarantine_seconds,
        reason=standing.reason,
    )


def fresh(options: EngineOptions, epoch: int) -> EngineState:
    """The state of a new job."""
    least = options.schedule.in_flight(options.schedule.overlap)
    most = max(least, options.schedule.in_flight(options.overlap_limit))
    in_flight = FragmentsInFlight(least, most, options.schedule.fragments, allowed=least)
    state = EngineState(options, epoch, in_flight)
    state.versions = [0] * options.schedule.fragments
    state.fragment_tokens = [0] * options.schedule.fragments
    state.learners = {name: LearnerRecord(name) for name in options.learners}
    state.planned = frozenset(options.learners)
    state.elastic = {one.pool: ElasticPool(one.learners) for one in options.pool_minimums}
    return state


def check(options: EngineOptions, snapshot: dict[str, Any]) -> None:
    """Check that a syncer could resume from a snapshot. Raises as ``restore``."""
    restore(options, 1, snapshot)


def restore(options: EngineOptions, epoch: int, snapshot: dict[str, Any]) -> EngineState:
    """The state of a snapshot, with every learner absent.

    A pool may be scaled between two runs: new learners start from zero, and the work of those that are no longer
    planned is kept. Learners of pools that the job no longer has are left out.

    Raises:
        LaterSnapshotError: a later version of diloco wrote it.
        SnapshotError: not a snapshot, or of a model cut into another number of fragments.
    """
    try:
        saved = _Snapshot.model_validate(snapshot)
    except ValidationError as error:
        problems = error.errors()
        # Unknown fields are reported first: the rest may be valid for the version that wrote it.
        newer = [one for one in problems if one["type"] == "extra_forbidden" or one["loc"] == ("format",)]
        first = [*newer, *problems][0]
        where = ".".join(str(part) for part in first["loc"])
        kind = LaterSnapshotError if newer else SnapshotError
        raise kind(f"engine snapshot: {where}: {first['msg']}") from None
    fragments = options.schedule.fragments
    for field, found in (("versions", saved.versions), ("fragment_tokens", saved.fragment_tokens)):
        if len(found) != fragments:
            raise SnapshotError(f"engine snapshot: {field}: {len(found)} fragments, the job has {fragments}")
    state = fresh(options, epoch)
    # A learner must join again before the job goes on; a job that was over stays over.
    state.phase = saved.phase if saved.phase in (Phase.COMPLETE, Phase.FAILED) else Phase.WAITING
    state.phase_reason = saved.phase_reason if state.finished else "the syncer has restarted; no learner has joined yet"
    state.launched, state.merges = saved.launched, saved.merges
    state.versions, state.fragment_tokens = list(saved.versions), list(saved.fragment_tokens)
    for name, kept in saved.learners.items():
        if name in state.learners or pool_of(name) in options.pools:
            state.learners[name] = _record(name, kept)
    state.evaluations = [
        EvaluationRecord(e.tokens, e.loss, e.at_seconds, e.final, e.doubted) for e in saved.evaluations
    ]
    state.evaluations_ordered = saved.evaluations_ordered
    state.next_evaluation_tokens = saved.next_evaluation_tokens
    state.elapsed_seconds = saved.elapsed_seconds
    state.quorum_seconds = MovingAverage(saved.quorum_seconds)
    state.sync_seconds = MovingAverage(saved.sync_seconds)
    state.merge_seconds = MovingAverage(saved.merge_seconds)
    return state


def _record(name: str, kept: _Learner) -> LearnerRecord:
    return LearnerRecord(
        name,
        state=LearnerState.GIVEN_UP if kept.given_up else LearnerState.ABSENT,
        instance=kept.instance,
        superseded=list(kept.superseded),
        joins=kept.joins,
        stopped=kept.left_cleanly,
        restarts=kept.restarts,
        step=kept.step,
        tokens=kept.tokens,
        data_position=kept.data_position,
        loss=kept.loss,
        blocked_seconds=kept.blocked_seconds,
        pushed_bytes=kept.pushed_bytes,
        merged_tokens=kept.merged_tokens,
        allotted_seconds=kept.allotted_seconds,
        account=_account(kept),
        standing=_restored(kept.standing),
    )


def _restored(kept: _Standing | None) -> Standing:
    """The end of a quarantine is its remaining time until the first learner joins (`healing.joins`)."""
    if kept is None:
        return Standing()
    return Standing(
        reset_due=kept.reset_due,
        on_trial=kept.on_trial,
        merged_on_trial=kept.merged_on_trial,
        resets=kept.resets,
        quarantines=kept.quarantines,
        quarantined_until=kept.quarantine_seconds,
        reason=kept.reason,
    )


def _account(kept: _Learner) -> Account:
    saved = kept.account
    if saved is None:
        merged = min(kept.merged_seconds, kept.allotted_seconds)
        seconds = {TimeClass.MERGED: merged, TimeClass.UNEXPLAINED: kept.allotted_seconds - merged}
        return Account(seconds, kept.allotted_seconds, step=kept.step)
    spent = TimeSpent(**{one.name: saved.spent.get(one.name, 0.0) for one in fields(TimeSpent)})
    seconds = dict(saved.seconds)
    loading = seconds.get(TimeClass.LOADING, 0.0)
    rejoining = min(saved.spent.get(_REJOINING, 0.0), loading)
    if rejoining > 0:
        seconds[TimeClass.LOADING], seconds[TimeClass.REJOINING] = loading - rejoining, rejoining
    return Account(seconds, fsum(saved.seconds.values()), step=saved.step, spent=spent)
