"""Which learners are lost, stalled or stuck: by how long they have been silent, and how long they have made no step.

A learner that is silent for its lease is lost, and joins again when it can. One that is heard from but makes no step is
stalled after the same time: nothing waits for it. If that goes on for the stuck bound it is *stuck*, and its process is
told to end, so that a new one takes its place.

Ending a process that would have gone on costs a restart, so only time counts in which the learner was heard from and
could have made a step: up to a lease between two of its messages. So a frozen learner, a cut link or a syncer that was
itself paused for an hour adds at most one lease. Time in which it waits for a fragment, evaluates or loads the model
does not count.
"""

from collections.abc import Iterable

from diloco.core.account import recovery
from diloco.core.engine.actions import Action, Fence, Note, NoteKind, Refusal, SetTimer
from diloco.core.engine.events import LearnerAlive, OfSession
from diloco.core.engine.members import pools
from diloco.core.engine.records import WORKING, LearnerRecord
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import LearnerState, Phase

LEASE_TIMER = "lease"
SLOW_STEPS = 10
"""A learner counts as lost or stalled only after this many of its own steps (ours)."""
STUCK_STEPS = 30
"""A learner counts as stuck only after this many of its own steps (ours): it may skip ten that are not finite, and
write a checkpoint."""


def alive(state: EngineState, event: LearnerAlive, now: float) -> list[Action]:
    """Renew a lease. A learner that is stuck says nothing else, so this is where it is found out."""
    record = heard(state, event, now)
    if record is None:
        return []
    bound = _stuck_seconds(state, record)
    if bound is None or record.idle_seconds < bound:
        return []
    lose(state, record, now, now)
    usual = record.pace.seconds
    step = "it has made none yet" if usual is None else f"its steps take {usual:.3g} s"
    text = f"alive, but no step for {record.idle_seconds:.0f} s; {bound:.0f} s are allowed, and {step}"
    return [Fence(record.id, record.incarnation, Refusal.STUCK, text)]


def lose(state: EngineState, record: LearnerRecord, lost_at: float, now: float) -> None:
    """End the session of a learner that was last there at ``lost_at``."""
    state.becomes(record, LearnerState.ABSENT)
    record.recovering = recovery.lost(record.recovering, lost_at)
    pools.withdraw(state, record, now)
    state.gone[record.id] = False


def put_out_removed(state: EngineState, now: float) -> list[Action]:
    """End the sessions of learners whose pool was removed: whoever has its certificate has no say from now on."""
    actions: list[Action] = []
    for record in state.ordered_learners:
        if record.present and record.pool not in state.pools:
            lose(state, record, now, now)
            actions.append(Fence(record.id, record.incarnation, Refusal.UNKNOWN_LEARNER, "its pool was removed"))
    return actions


def heard(state: EngineState, event: OfSession, now: float) -> LearnerRecord | None:
    """The learner whose message this is, if the incarnation is current; any message renews its lease."""
    record = state.current(event.learner, event.incarnation)
    if record is None:
        return None
    if _may_step(state, record):
        record.idle_seconds += min(now - record.last_heard_at, state.options.lease_seconds)
    else:
        record.idle_seconds, record.idle_since = 0.0, now
    record.last_heard_at = now
    return record


def check_leases(state: EngineState, now: float) -> list[Action]:
    """Give up learners that were silent too long; mark as stalled those that only send heartbeats."""
    state.lease_timer_at = None
    actions: list[Action] = []
    for record in state.ordered_learners:
        if not record.present:
            continue
        lease = _lease_seconds(state, record)
        silent = now - record.last_heard_at
        idle = now - record.idle_since
        if silent >= lease:
            lose(state, record, record.last_heard_at, now)
            text = f"silent for {silent:.1f} s; its lease is {lease:.1f} s"
            actions.append(Fence(record.id, record.incarnation, Refusal.LEASE_EXPIRED, text))
        elif record.state == LearnerState.TRAINING and idle >= lease:
            state.becomes(record, LearnerState.STALLED)
            text = f"alive, but no step for {idle:.1f} s; {lease:.1f} s are allowed"
            actions.append(Note(NoteKind.LEARNER_STALLED, text, record.id))
    return actions + watch(state, state.learners.values(), now)


def watch(state: EngineState, records: Iterable[LearnerRecord], now: float) -> list[Action]:
    """Set the lease timer for the earliest moment at which the lease of one of these, or of any other, can run out."""
    leases = [
        (
            record.last_heard_at
            if record.state != LearnerState.TRAINING
            else min(record.last_heard_at, record.idle_since)
        )
        + _lease_seconds(state, record)
        for record in records
        if record.present
    ]
    if not leases:
        return []
    # Not in a tight loop where the sum is rounded down.
    at = max(min(leases), now + 0.1 * state.options.lease_seconds)
    if state.lease_timer_at is not None and state.lease_timer_at <= at:
        return []
    state.lease_timer_at = at
    return [SetTimer(LEASE_TIMER, at)]


def _lease_seconds(state: EngineState, record: LearnerRecord) -> float:
    step = record.pace.seconds
    if step is None:
        return max(state.options.startup_seconds, state.options.lease_seconds)
    return max(state.options.lease_seconds, SLOW_STEPS * step)


def _stuck_seconds(state: EngineState, record: LearnerRecord) -> float | None:
    """Idle time after which a learner is stuck; None: never."""
    least, step = state.options.stuck_seconds, record.pace.seconds
    if least is None:
        return None
    if step is None or record.id in state.did_not_evaluate:  # it may compile, or still evaluate
        return max(least, state.options.startup_seconds)
    return max(least, STUCK_STEPS * step)


def _may_step(state: EngineState, record: LearnerRecord) -> bool:
    """Whether nothing that the engine knows of keeps a learner from making a step.

    An evaluation does so once: a learner that did not answer one in time may be stuck in it, and is asked again if
    there is no other.
    """
    if state.phase != Phase.TRAINING or record.state not in WORKING or state.at_bound(record):
        return False
    return state.evaluation is None or not state.evaluates(record) or record.id in state.did_not_evaluate
