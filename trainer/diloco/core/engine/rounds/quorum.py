"""The quorum rule: when a round may merge, and what happens until then.

A round that is due has its quorum when K learners (`EngineState.quorum`) have answered, at least one of them with an
outer gradient. A learner that has nothing to send counts only if it cannot make a step until something is merged.
Without a quorum the round never gives up on a learner that has a session: an unanswered request is repeated under a new
attempt number, after twice as long each time, so that a fragment gets through even on a slow link.
"""

from diloco.core.engine.actions import Action, CancelTimer, Note, NoteKind, SetTimer
from diloco.core.engine.records import Round
from diloco.core.engine.rounds import requests, round_end
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import LearnerState

PATIENCE = 4
"""A request is repeated after this many times the usual time to a quorum (ours)."""


def check(state: EngineState, current: Round, now: float) -> list[Action]:
    """Go on with a round whose answers or learners have changed."""
    if current.closed_at is not None or current.launched_at is None:
        return []
    if current.quorum_at is not None:
        return round_end.settle(state, current, now)
    if is_reached(state, current):
        return round_end.begin(state, current, now)
    if current.arrived:
        declined = [(state.learners[name], step) for name, step in sorted(current.declined.items())]
        ready = [one for one, step in declined if one.step > step and state.is_ready(one, current.fragment)]
        for one in ready:
            del current.declined[one.id]
        reason = "has made a step since it declined, and there is no quorum yet"
        return [requests.ask(state, current, one, now, reason) for one in ready]
    if len(current.declined) >= state.quorum and round_end.all_answered(state, current):
        state.end(current)
        state.asked_before[current.fragment] = state.asked_before.get(current.fragment, {}) | current.asked
        return abandoned(current, "no learner had made a step since it received the fragment")
    return []


def is_reached(state: EngineState, current: Round) -> bool:
    """Whether a round may merge what it has."""
    missing = state.quorum - len(current.arrived)
    if not current.arrived or missing > len(current.declined):
        return False
    declined = (state.learners[name] for name in current.declined)
    return missing <= 0 or missing <= sum(
        one.state == LearnerState.TRAINING and state.at_bound(one) for one in declined
    )


def timer(state: EngineState, fragment: int, now: float) -> list[Action]:
    """End the wait of a round that has its quorum; otherwise repeat unanswered requests."""
    current = state.rounds.get(fragment)
    if current is None or current.closed_at is not None or current.launched_at is None:
        return []
    if current.quorum_at is not None:
        current.wakes_at = None
        return round_end.settle(state, current, now)
    current.attempts += 1
    working = state.roster.working.values()
    unanswered = [record for record in working if not current.answered(record.id)]
    # A learner that had nothing to send may have made steps since.
    if not unanswered:
        unanswered = [record for record in working if record.id in current.declined]
        current.declined.clear()
    reason = f"no quorum after {now - current.launched_at:.1f} s; the request is repeated"
    asks: list[Action] = [requests.ask(state, current, record, now, reason) for record in unanswered]
    return [*asks, patience(state, current, now)]


def patience(state: EngineState, current: Round, now: float) -> SetTimer:
    """The timer after which a round without a quorum repeats its unanswered requests."""
    usual = max(state.options.lease_seconds, PATIENCE * state.quorum_seconds.or_else(0.0))
    return SetTimer(current.timer, now + float(usual * 2 ** min(current.attempts, 10)))


def abandoned(current: Round, reason: str) -> list[Action]:
    """A round ends without a merge."""
    return [CancelTimer(current.timer), Note(NoteKind.ROUND_ABANDONED, reason, fragment=current.fragment)]
