"""How a round that has its quorum ends: which learners it waits for, how long, and who its members are.

It waits for the answers of learners that are ready while their work is worth the wait (`waiting`), and for those that
are not ready yet during the paper's grace window (`grace`). Then the members are frozen and merged.
"""

from math import inf

from diloco.core.engine.actions import Action, CancelTimer, Member, Merge, Note, NoteKind, SetTimer
from diloco.core.engine.members import accounting
from diloco.core.engine.records import Round
from diloco.core.engine.rounds import requests, unanswered
from diloco.core.engine.rounds.grace import grace_window
from diloco.core.engine.rounds.last_versions import averaged_with_next
from diloco.core.engine.rounds.waiting import Candidate, Wait, wait_for
from diloco.core.engine.state import EngineState
from diloco.core.merge import merge_weights
from diloco.spec.status.engine import LearnerState


def begin(state: EngineState, current: Round, now: float) -> list[Action]:
    """A round has its quorum: close it, or wait for others."""
    assert current.launched_at is not None
    current.quorum_at = now
    state.quorum_seconds.add(now - current.launched_at)
    if all_answered(state, current):
        return _close(state, current, now, "every learner that is training has answered")
    seconds, grace = grace_window(state)
    current.grace_until = now + seconds
    reached = f"quorum of {state.quorum} after {now - current.launched_at:.3f} s"
    return plan_wait(state, current, now, f"{reached}, {grace}; ")


def plan_wait(state: EngineState, current: Round, now: float, why: str) -> list[Action]:
    """Decide again which learners the round waits for."""
    wait = _wait(state, current, now)
    current.deadlines, current.missing = dict(wait.deadlines), None
    return [Note(NoteKind.ROUND_WAITS, f"{why}{wait.reason}", fragment=current.fragment), *settle(state, current, now)]


def _wait(state: EngineState, current: Round, now: float) -> Wait:
    assert current.launched_at is not None
    candidates, speed, size = [], 0.0, state.options.sizes[current.fragment]
    for record in state.roster.working.values():
        if record.state != LearnerState.TRAINING:
            continue
        speed += record.tokens_per_second if record.paces else 0.0
        if not current.awaits(record.id) or (request := current.asked[record.id]).since is None:
            continue
        stake = record.credit.tokens - record.received_tokens[current.fragment]
        usual = state.usual_answer_seconds(record, current.fragment)
        deviation = max(1.0, size) * record.answer_seconds.deviation
        missed = record.missed_since is not None and request.since > record.missed_since
        missed |= usual is None and not record.paces  # it may join again and again
        candidates.append(Candidate(record.id, request.since, usual, deviation, stake, missed=missed))
    step_seconds = state.quorum_step_seconds
    bound_at = current.launched_at + state.options.overlap_limit * step_seconds
    return wait_for(candidates, now, bound_at, tokens_per_second=speed, step_seconds=step_seconds)


def settle(state: EngineState, current: Round, now: float) -> list[Action]:
    """Close a round that waits for no more learners; otherwise set its timer for the end of its wait."""
    last = _last_missing(state, current)
    if last is None:
        return _close(state, current, now, "every learner that is training has answered")
    until = current.deadlines.get(last, now)
    if now < current.grace_until > until and _may_any_come_in_grace(state, current):
        until = current.grace_until
    if until <= now:
        return _close(state, current, now, "the wait is over")
    if until == current.wakes_at:
        return []
    current.wakes_at = until
    return [SetTimer(current.timer, until)]


def _may_come_in_grace(state: EngineState, current: Round, name: str) -> bool:
    """Whether the grace window applies to this learner: it is not ready yet, or may still answer within the window.

    It does not apply to one that rounds have ended without.
    """
    request, record = current.asked[name], state.learners[name]
    if request.since is None or not record.paces:
        return record.paces
    usual = state.usual_answer_seconds(record, current.fragment)
    return usual is None or request.since + usual <= current.grace_until


def all_answered(state: EngineState, current: Round, *, that_pace: bool = False) -> bool:
    """Whether no learner that was asked trains and has not answered; or of those only that the schedule follows."""
    names = current.asked.keys() & state.roster.pacing if that_pace else current.asked
    return not any(_is_missing(state, current, name) for name in names)


def _is_missing(state: EngineState, current: Round, name: str) -> bool:
    return current.awaits(name) and state.learners[name].state == LearnerState.TRAINING


def _last_missing(state: EngineState, current: Round) -> str | None:
    """Of the learners that all have to answer, the one with the longest deadline."""
    if current.missing is None:
        names = filter(current.awaits, current.asked)
        current.missing = sorted(names, key=lambda name: current.deadlines.get(name, -inf))
    while current.missing and not current.awaits(current.missing[-1]):
        current.missing.pop()  # for good, as a round that has its quorum asks nobody
    for name in reversed(current.missing):
        if _is_missing(state, current, name):
            return name
    return None


def _may_any_come_in_grace(state: EngineState, current: Round) -> bool:
    """Whether the grace window applies to a learner without a deadline."""
    assert current.missing is not None
    for name in current.missing:
        if name in current.deadlines:
            return False
        if _is_missing(state, current, name) and _may_come_in_grace(state, current, name):
            return True
    return False


def _close(state: EngineState, current: Round, now: float, why: str) -> list[Action]:
    """Freeze the members and order the merge."""
    current.closed_at, current.averaged = now, averaged_with_next(state, current.fragment)
    for name, event in current.arrived.items():
        state.learners[name].frozen[event.fragment] = event.key
    accounting.frozen(state, current)
    raw = {
        name: merge_weights.token_weight(event.tokens, event.steps) if state.options.token_weights else 1.0
        for name, event in current.arrived.items()
    }
    weights = merge_weights.normalized(raw)
    members = tuple(
        Member(name, one.incarnation, one.attempt, one.base_version, one.steps, one.tokens, weights[name], one.digest)
        for name, one in sorted(current.arrived.items())
    )
    actions: list[Action] = [CancelTimer(current.timer)]
    for record in list(state.roster.working.values()):
        if record.id not in current.arrived:
            actions += unanswered.ended_without(state, current, record, now)
            declined = record.id in current.declined
            text = "it had made no step" if declined else "its outer gradient did not arrive in time"
            actions.append(Note(NoteKind.LEARNER_EXCLUDED, text, record.id, current.fragment))
            if record.id in current.asked and not declined:
                requests.shut_out(state, record, current, now)
    reason = f"syncer step {current.step}: {len(members)} learner(s), {why}"
    return [*actions, Merge(current.fragment, current.version, members, reason, current.averaged)]
