"""Resets learners that have diverged, puts them in quarantine, and lets them back in (`standing` has the rules).

A learner in quarantine keeps its session and trains on, but it is not asked, and the quorum does not count it. So the
others go on as if it were not there. The last learner that works is never put in quarantine, and if no other works any
longer, there is nobody to protect: then it is let back in early. So quarantines never stop a job.
"""

from collections.abc import Collection

from diloco.core.engine.actions import Action, Fence, Note, NoteKind, Refusal, SetTimer
from diloco.core.engine.events import LeftOut
from diloco.core.engine.members import standing
from diloco.core.engine.members.standing import Remedy
from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import LearnerState

QUARANTINE_TIMER = "quarantine"


def left_out(state: EngineState, found: LeftOut, fragment: int, merged: Collection[str], now: float) -> list[Action]:
    """Reset or quarantine a learner if it has diverged; ``merged``: members whose outer gradients are not wrong."""
    record = state.learners[found.learner]
    if not record.working:
        return []
    remedy = standing.left_out(record.standing, fragment, broken=found.broken, merged=merged, planned=state.planned)
    if remedy is None:
        return []
    reason = f"several of its outer gradients in a row could not be merged, most recently fragment {fragment}: "
    reason += found.reason
    state.gone[record.id] = True
    if remedy is Remedy.RESET or not _any_works(state, besides=record):
        standing.reset(record.standing, reason)
        state.becomes(record, LearnerState.ABSENT)
        return [Fence(record.id, record.incarnation, Refusal.RESET, f"it has diverged: {reason}")]
    seconds = standing.quarantine(record.standing, reason, now, state.options.quarantine_seconds)
    state.becomes(record, LearnerState.QUARANTINED)
    state.fewer_left = True
    text = f"it has diverged again after a reset, and is in quarantine for {seconds:.0f} s: {reason}"
    return [Note(NoteKind.LEARNER_QUARANTINED, text, record.id), *watch(state, now)]


def joins(state: EngineState, record: LearnerRecord, now: float) -> None:
    """End the quarantine of a learner that joins, if its time is over."""
    if state.elapsed_since is None:  # the first to join since the syncer started
        for other in state.learners.values():
            if other.standing.quarantined_until is not None:
                other.standing.quarantined_until += now
    until = record.standing.quarantined_until
    if until is not None and now >= until:
        standing.release(record.standing)


def quarantine_seconds(state: EngineState, record: LearnerRecord, now: float) -> float | None:
    """How long a learner stays in quarantine; None: it is in none."""
    until = record.standing.quarantined_until
    if until is None or state.elapsed_since is None:  # the time of a snapshot counts from the first join on
        return until
    return max(0.0, until - now)


def timer(state: EngineState, now: float) -> list[Action]:
    """Let learners back in whose quarantine is over: they join again, and load the global model."""
    actions: list[Action] = []
    for record in state.ordered_learners:
        until = record.standing.quarantined_until
        # One that is away stays in quarantine until it joins, so that the quorum does not wait for it.
        if record.present and until is not None and (now >= until or not _any_works(state)):
            standing.release(record.standing)
            state.becomes(record, LearnerState.ABSENT)
            state.gone[record.id] = True
            actions.append(Fence(record.id, record.incarnation, Refusal.RESET, "its quarantine is over"))
    return actions + watch(state, now)


def watch(state: EngineState, now: float) -> list[Action]:
    """Set the timer for the next look at learners in quarantine."""
    ends = [
        record.standing.quarantined_until
        for record in map(state.learners.__getitem__, state.roster.quarantined)
        if record.present and record.standing.quarantined_until is not None
    ]
    if not ends:
        return []
    # Before its end in case the others leave, though not at once: they may only be restarting.
    return [SetTimer(QUARANTINE_TIMER, max(now + 0.1, min(now + state.options.startup_seconds, *ends)))]


def _any_works(state: EngineState, besides: LearnerRecord | None = None) -> bool:
    return any(record is not besides for record in state.roster.working.values())
