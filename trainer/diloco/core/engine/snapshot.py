"""The engine's state as plain JSON, and back: whole for a tape's segments, at rest for checkpoints.

Both hold the fields of ``EngineState`` but the options and the epoch, so its dataclasses define the format. A field
that is added later has a default, which is used when an older state is read.

An engine made from its whole state decides exactly as the one that it was taken from. A state at rest is that of a
restarted syncer: without sessions, rounds under way and timers. Learners join again, and a fragment that was under way
is due again within H inner steps. Clocks differ between processes, so it holds durations, not moments.
"""

from dataclasses import replace
from typing import Any, Final

from diloco.core.engine.members import divergence
from diloco.core.engine.options import EngineOptions
from diloco.core.engine.records import ElasticPool, LearnerRecord
from diloco.core.engine.rounds.overlap import FragmentsInFlight
from diloco.core.engine.state import EngineState
from diloco.runtime.plain import PlainError, from_plain, shown, to_plain
from diloco.spec.names.learner_ids import pool_of
from diloco.spec.status.engine import LearnerState, Phase

FORMAT: Final = 1
_NOT_IN_IT: Final = frozenset(("options", "epoch"))
_NUMBERS: Final = (
    *("launched", "versions", "fragment_tokens", "averaged", "withheld"),
    *("evaluations_ordered", "next_evaluation_tokens", "elapsed_seconds"),
)
_OF_LEARNERS: Final = (
    *("joins", "restarts", "step", "tokens", "data_position", "pushed_bytes", "merged_tokens", "allotted_seconds"),
    "counted_in",
)
_LIMITS: Final = {"evaluations_ordered": 1 << 32}
"""Messages hold numbers below these, and others below 2^64."""


class SnapshotError(ValueError):
    """A value is not an engine's state, or is of another job."""


class LaterSnapshotError(SnapshotError):
    """Another version of diloco has written the state, which is not damaged."""


def fresh(options: EngineOptions, epoch: int) -> EngineState:
    """The state of a new job."""
    least = options.schedule.in_flight(options.schedule.overlap)
    most = max(least, options.schedule.in_flight(options.overlap_limit))
    in_flight = FragmentsInFlight(least, most, options.schedule.fragments, allowed=least)
    return EngineState(
        options,
        epoch,
        in_flight,
        withheld=[0] * options.schedule.fragments,
        versions=[0] * options.schedule.fragments,
        fragment_tokens=[0] * options.schedule.fragments,
        averaged=[0] * options.schedule.fragments,
        turns_at=[None] * options.schedule.fragments,
        learners={name: LearnerRecord(name) for name in options.learners},
        planned=frozenset(options.learners),
        pools=frozenset(options.pools),
        elastic={one.pool: ElasticPool(one.learners) for one in options.pool_minimums},
        terms={one.pool: one for one in options.pool_terms},
    )


def take_whole(state: EngineState) -> dict[str, Any]:
    """The whole state; it shares nothing that can change with ``state``."""
    in_order = {"planned": sorted(state.planned), "pools": sorted(state.pools)}
    return {"format": FORMAT, **to_plain(state, without=_NOT_IN_IT), **in_order}


def restore_whole(options: EngineOptions, epoch: int, plain: Any) -> EngineState:
    """The state from which ``take_whole`` made ``plain``.

    Raises:
        LaterSnapshotError: another version of diloco wrote it.
        SnapshotError: it is not a state, or of a model cut into another number of fragments.
    """
    found = plain.get("format") if isinstance(plain, dict) else plain
    if found != FORMAT:
        raise LaterSnapshotError(f"engine state: format is {shown(found)}; this version of diloco reads {FORMAT}")
    given = {name: value for name, value in plain.items() if name != "format"}
    try:
        state = from_plain(EngineState, {**given, "options": to_plain(options), "epoch": epoch})
    except PlainError as error:
        raise (LaterSnapshotError if error.unknown else SnapshotError)(str(error)) from None
    state.options = options
    state.roster.gather()
    fragments = options.schedule.fragments
    for name in ("versions", "fragment_tokens", "averaged", "withheld"):
        if (count := len(getattr(state, name))) != fragments:
            raise SnapshotError(f"EngineState.{name}: {count} fragments, the job has {fragments}")
    return state


def take(state: EngineState, now: float) -> dict[str, Any]:
    """The state at ``now``, at rest."""
    rest = replace(
        fresh(state.options, state.epoch),
        phase=state.phase,
        phase_reason=state.phase_reason,
        launched=state.launched,
        begun=state.begun,
        confirmed=state.confirmed,
        withheld=state.withheld,
        versions=state.versions,
        fragment_tokens=state.fragment_tokens,
        averaged=state.averaged,
        evaluations=state.evaluations,
        evaluations_ordered=state.evaluations_ordered,
        next_evaluation_tokens=state.next_evaluation_tokens,
        silent_evaluators=state.silent_evaluators,
        quorum_seconds=state.quorum_seconds,
        sync_seconds=state.sync_seconds,
        merge_seconds=state.merge_seconds,
        elapsed_seconds=state.elapsed(now),
        learners={record.id: _at_rest(state, record, now) for record in state.ordered_learners},
    )
    return take_whole(rest)


def check(options: EngineOptions, plain: dict[str, Any]) -> None:
    """Check that a syncer could resume from a state. Raises as ``restore``."""
    restore(options, 1, plain)


def restore(options: EngineOptions, epoch: int, plain: dict[str, Any]) -> EngineState:
    """The state of a restarted syncer from one at rest.

    A pool may be scaled between two runs: new learners start from zero, and the work of those that are no longer
    planned is kept. Learners of pools that the job no longer has are left out.

    Raises:
        LaterSnapshotError: another version of diloco wrote it.
        SnapshotError: it is not a state, has numbers that no job has, or is of a model cut into another number of
            fragments.
    """
    state, new = restore_whole(options, epoch, plain), fresh(options, epoch)
    _check_numbers("EngineState", state, _NUMBERS)
    for name, record in state.learners.items():
        _check_numbers(f"EngineState.learners.{name}", record, _OF_LEARNERS)
    state.overlap, state.recoveries = new.overlap, new.recoveries
    state.planned, state.pools, state.elastic, state.terms = new.planned, new.pools, new.elastic, new.terms
    # A learner must join again before the job goes on; a job that was over stays over, unless its budget was raised.
    raised = state.phase == Phase.COMPLETE and state.merged_tokens < options.budget_tokens
    if raised or not state.finished:
        state.phase, state.phase_reason = new.phase, "the syncer has restarted; no learner has joined yet"
    for name, record in state.learners.items():
        if name in new.learners or pool_of(name) in new.pools:
            new.learners[name] = record
    state.learners = new.learners
    state.roster.gather()
    return state


def _check_numbers(where: str, record: EngineState | LearnerRecord, fields: tuple[str, ...]) -> None:
    """Refuse numbers that no message holds: the syncer would fail again and again."""
    for name in fields:
        value, limit = getattr(record, name), _LIMITS.get(name, 1 << 64)
        for one in value if isinstance(value, list) else [value]:
            if not 0 <= one < limit:
                raise SnapshotError(f"{where}.{name} is {one}: use a number from 0 to {limit - 1}")


def _at_rest(state: EngineState, record: LearnerRecord, now: float) -> LearnerRecord:
    return LearnerRecord(
        record.id,
        state=LearnerState.GIVEN_UP if record.state == LearnerState.GIVEN_UP else LearnerState.ABSENT,
        instance=record.instance,
        superseded=record.superseded,
        joins=record.joins,
        left_cleanly=record.left_cleanly,
        restarts=record.restarts,
        step=record.step,
        tokens=record.tokens,
        data_position=record.data_position,
        loss=record.loss,
        pace=record.pace,
        earlier=record.earlier,
        credit=record.credit,
        pushed_bytes=record.pushed_bytes,
        merged_tokens=record.merged_tokens,
        counted_in=record.counted_in,
        allotted_seconds=record.allotted(now),
        unmerged=record.unmerged,
        unanswered=record.unanswered,
        unanswered_reason=record.unanswered_reason,
        account=record.account.at_rest(),
        # The end of a quarantine is its remaining time until the first learner joins (`divergence.joins`).
        standing=replace(
            record.standing,
            broken_in_a_row=0,
            in_a_row={},
            merged_in_row={},
            quarantined_until=divergence.quarantine_seconds(state, record, now),
        ),
    )
