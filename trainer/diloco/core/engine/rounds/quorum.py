"""The quorum rule: when a round may merge, and what happens until then.

A round that is due has its quorum when K learners (`EngineState.quorum`) have answered, at least one of them with an
outer gradient. A learner that has nothing to send counts only if it cannot make a step until something is merged.
Without a quorum an unanswered request is repeated under a new attempt number, after twice as long each time, so that a
fragment gets through even on a slow link; what a round waits for in vain, the quorum no longer counts (`unanswered`). A
learner that had nothing to send is asked again once it has made a step.
"""

from diloco.core.engine.actions import Action, CancelTimer, Note, NoteKind, SetTimer
from diloco.core.engine.records import LearnerRecord, Round
from diloco.core.engine.rounds import requests, round_end, unanswered
from diloco.core.engine.state import EngineState


def check(state: EngineState, current: Round, now: float) -> list[Action]:
    """Go on with a round whose answers or learners have changed."""
    if current.closed_at is not None or current.launched_at is None:
        return []
    if current.quorum_at is not None:
        return round_end.settle(state, current, now)
    if is_reached(state, current):
        return round_end.begin(state, current, now)
    if current.arrived or len(current.declined) < state.quorum:
        return []
    # A quorum at its bound makes no step before another fragment is merged, whatever others answer later.
    if round_end.all_answered(state, current) or (
        _waiting(state, current) >= state.quorum and round_end.all_answered(state, current, that_pace=True)
    ):
        return _give_up(state, current, now)
    return []


def _waiting(state: EngineState, current: Round) -> int:
    """How many of those that had nothing to send wait at their staleness bound."""
    declined = (state.learners[name] for name in current.declined)
    return sum(map(state.waits_at_bound, declined))


def _give_up(state: EngineState, current: Round, now: float) -> list[Action]:
    state.end(current)
    state.asked_before[current.fragment] = state.asked_before.get(current.fragment, {}) | current.asked
    notes: list[Action] = []
    for record in list(state.roster.working.values()):
        notes += unanswered.ended_without(state, current, record, now)
    return [*notes, *abandoned(current, "no learner had made a step since it received the fragment")]


def stepped(state: EngineState, current: Round, record: LearnerRecord, now: float) -> list[Action]:
    """Ask a learner again that had nothing to send, and has made a step since."""
    if not is_missing(current) or not requests.may_send_now(state, current, record):
        return []
    del current.declined[record.id]
    reason = "has made a step since it declined, and there is no quorum yet"
    return [requests.ask(state, current, record, now, reason)]


def is_missing(current: Round) -> bool:
    """Whether a launched round has no quorum."""
    return current.launched_at is not None and current.quorum_at is None


def is_reached(state: EngineState, current: Round) -> bool:
    """Whether a round may merge what it has."""
    missing = state.quorum - len(current.arrived)
    if not current.arrived or missing > len(current.declined):
        return False
    return missing <= 0 or missing <= _waiting(state, current)


def timer(state: EngineState, fragment: int, now: float) -> list[Action]:
    """End the wait of a round that has its quorum; otherwise repeat unanswered requests."""
    current = state.rounds.get(fragment)
    if current is None or current.closed_at is not None or current.launched_at is None:
        return []
    if current.quorum_at is not None:
        current.wakes_at = None
        return round_end.settle(state, current, now)
    if not current.arrived and _waiting(state, current) >= state.quorum:
        return _give_up(state, current, now)
    notes = unanswered.waited_for(state, current, now)
    if is_reached(state, current):  # by the quorum that is left, for all rounds
        return [*notes, patience(state, current, now)]
    current.attempts += 1
    working = state.roster.working.values()
    awaited = [record for record in working if not current.answered(record.id)]
    # A learner that had nothing to send may have made steps since.
    if not awaited:
        awaited = [record for record in working if record.id in current.declined]
        current.declined.clear()
    reason = f"no quorum after {now - current.launched_at:.1f} s; the request is repeated"
    asks: list[Action] = [requests.ask(state, current, record, now, reason) for record in awaited]
    return [*notes, *asks, patience(state, current, now)]


def patience(state: EngineState, current: Round, now: float) -> SetTimer:
    """The timer after which a round without a quorum repeats its unanswered requests."""
    options = state.options
    usual = min(options.startup_seconds, unanswered.PATIENCE * state.quorum_seconds.or_else(0.0))
    usual = max(options.lease_seconds, usual)
    return SetTimer(current.timer, now + float(usual * 2 ** min(current.attempts, 10)))


def abandoned(current: Round, reason: str) -> list[Action]:
    """A round ends without a merge."""
    return [CancelTimer(current.timer), Note(NoteKind.ROUND_ABANDONED, reason, fragment=current.fragment)]
