"""Resets learners that have diverged, puts them in quarantine, and lets them back in (`divergence` has the rules).

A learner in quarantine keeps its session and trains on, but it is not asked, and the quorum does not count it. So the
others go on as if it were not there. The last learner that works is never put in quarantine, and if no other works any
longer, there is nobody to protect: then it is let back in early. So quarantines never stop a job.
"""

from dataclasses import dataclass

from diloco.core import divergence
from diloco.core.actions import Action, Fence, Note, Refusal, SetTimer
from diloco.core.divergence import Remedy
from diloco.core.events import FragmentArrived, FragmentDeclined, LeftOut
from diloco.core.options import Rules
from diloco.core.outliers import NOT_FINITE
from diloco.core.state import EngineState, LearnerRecord
from diloco.spec.syncer_status import LearnerState

QUARANTINE_TIMER = "quarantine"
QUARANTINED = "LearnerQuarantined"
"""Subject of the note on a learner that goes into quarantine."""


def merged_with(state: EngineState, record: LearnerRecord, fragment: int) -> None:
    """Note that a merge contains a learner's outer gradient."""
    divergence.merged_with(record.standing, fragment, state.options.schedule.fragments)


def left_out(state: EngineState, found: LeftOut, sent: FragmentArrived, others: int, now: float) -> list[Action]:
    """Note that a merge of ``others`` leaves out the outer gradient that a learner has sent."""
    record = state.learners[found.learner]
    if sent.incarnation != record.incarnation:
        return []
    return _wrong(state, record, _Wrong(sent.fragment, found.reason, found.broken, others), now)


def declined(state: EngineState, event: FragmentDeclined, now: float) -> list[Action]:
    """Note that a learner itself says that its outer gradient is broken, which nobody says without cause."""
    return _wrong(state, state.learners[event.learner], _Wrong(event.fragment, NOT_FINITE, broken=True, others=1), now)


@dataclass(frozen=True, slots=True)
class _Wrong:
    """What is wrong with an outer gradient."""

    fragment: int
    reason: str
    broken: bool
    others: int
    """Members whose outer gradients are not wrong."""


def _wrong(state: EngineState, record: LearnerRecord, what: _Wrong, now: float) -> list[Action]:
    if state.options.rules < Rules.HEALING or not record.working:
        return []
    standing = record.standing
    remedy = divergence.left_out(standing, what.fragment, broken=what.broken, others=what.others)
    if remedy is None:
        return []
    reason = f"several of its outer gradients in a row could not be merged, most recently fragment {what.fragment}: "
    reason += what.reason
    if remedy is Remedy.RESET or not _any_works(state, besides=record):
        divergence.reset(standing, reason)
        record.state = LearnerState.ABSENT
        return [Fence(record.id, record.incarnation, Refusal.RESET, f"it has diverged: {reason}")]
    seconds = divergence.quarantine(standing, reason, now, state.options.quarantine_seconds)
    record.state = LearnerState.QUARANTINED
    text = f"it has diverged again after a reset, and is in quarantine for {seconds:.0f} s: {reason}"
    return [Note(QUARANTINED, text, record.id), *watch(state, now)]


def joins(state: EngineState, record: LearnerRecord, now: float) -> None:
    """End the quarantine of a learner that joins, if its time is over."""
    if state.elapsed_since is None:  # the first to join since the syncer started
        for other in state.learners.values():
            if other.standing.quarantined_until is not None:
                other.standing.quarantined_until += now
    until = record.standing.quarantined_until
    if until is not None and now >= until:
        divergence.release(record.standing)


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
            divergence.release(record.standing)
            record.state = LearnerState.ABSENT
            actions.append(Fence(record.id, record.incarnation, Refusal.RESET, "its quarantine is over"))
    return actions + watch(state, now)


def watch(state: EngineState, now: float) -> list[Action]:
    """Set the timer for the next look at learners in quarantine."""
    ends = [
        record.standing.quarantined_until
        for record in state.learners.values()
        if record.present and record.standing.quarantined_until is not None
    ]
    if not ends:
        return []
    # Before its end in case the others leave, though not at once: they may only be restarting.
    return [SetTimer(QUARANTINE_TIMER, max(now + 0.1, min(now + state.options.startup_seconds, *ends)))]


def _any_works(state: EngineState, besides: LearnerRecord | None = None) -> bool:
    return any(record.working for record in state.learners.values() if record is not besides)
