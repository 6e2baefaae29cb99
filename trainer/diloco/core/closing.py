"""How a round that has its quorum ends: which learners it waits for, how long, and who its members are.

It waits for the answers of learners that are ready while their work is worth the wait (`waiting`), and for those that
are not ready yet during the paper's grace window (`grace`). Then the members are frozen and merged.
"""

from diloco.core import accounting, merge_weights, requests
from diloco.core.actions import Action, CancelTimer, Member, Merge, Note, SetTimer
from diloco.core.grace import Durations, GraceWindow, grace_window
from diloco.core.options import Rules
from diloco.core.state import EngineState, Round
from diloco.core.waiting import Candidate, Wait, wait_for
from diloco.spec.syncer_status import LearnerState

ROUND_TIMER = "round/"
"""Prefix of the name of a round's timer; the fragment's number follows. Before the quorum the timer repeats unanswered
requests, after it the timer ends the wait."""


def round_timer(fragment: int) -> str:
    """Name of a round's timer."""
    return f"{ROUND_TIMER}{fragment}"


def check(state: EngineState, current: Round, now: float) -> list[Action]:
    """Close the round, begin or end its wait, or keep waiting."""
    if current.closed_at is not None or current.launched_at is None:
        return []
    if current.quorum_at is not None:
        return settle(state, current, now)
    if not current.arrived:
        empty = len(current.declined) >= state.quorum and not _unanswered(state, current)
        return _abandon_empty(state, current) if empty else []
    if answers(state, current) < state.quorum:
        return _ask_again(state, current, now)
    return _reach_quorum(state, current, now)


def _reach_quorum(state: EngineState, current: Round, now: float) -> list[Action]:
    """The quorum has answered: close, or wait for others."""
    assert current.launched_at is not None
    current.quorum_at = now
    state.quorum_seconds.add(now - current.launched_at)
    if not _unanswered(state, current):
        return _close(state, current, now, "every learner that is training has answered")
    grace = _grace(state)
    current.grace_until = now + grace.seconds
    reached = f"quorum of {state.quorum} after {now - current.launched_at:.3f} s"
    if state.options.rules == Rules.ARRIVED:
        return _open_grace(state, current, now, grace, reached)
    return plan_wait(state, current, now, f"{reached}, {grace.reason}; ")


def _open_grace(state: EngineState, current: Round, now: float, grace: GraceWindow, reached: str) -> list[Action]:
    """Wait for the grace window only, as the earliest rules do."""
    if grace.seconds <= 0:
        return _close(state, current, now, f"quorum of {state.quorum}; {grace.reason}")
    awaited = ", ".join(_unanswered(state, current))
    current.wakes_at = current.grace_until
    return [
        Note("GraceOpened", f"{reached}, waits for {awaited}: {grace.reason}", fragment=current.fragment),
        SetTimer(round_timer(current.fragment), current.grace_until),
    ]


def answers(state: EngineState, current: Round) -> int:
    """Number of learners that have sent the fragment, or that cannot make a step until something is merged."""
    if state.options.rules < Rules.GUARDED:
        return current.answers
    return len(current.arrived) + sum(state.waits_at_bound(state.learners[name]) for name in current.declined)


def _ask_again(state: EngineState, current: Round, now: float) -> list[Action]:
    """Without a quorum: repeat the request to learners that declined it and have something to send by now."""
    if state.options.rules < Rules.GUARDED:
        return []
    ready = [name for name in sorted(current.declined) if state.is_ready(state.learners[name], current.fragment)]
    current.declined.difference_update(ready)
    reason = "has made a step since it declined, and there is no quorum yet"
    return [requests.ask(state, current, state.learners[name], now, reason) for name in ready]


def plan_wait(state: EngineState, current: Round, now: float, why: str) -> list[Action]:
    """Decide again which learners the round waits for."""
    wait = _wait(state, current, now)
    current.deadlines = dict(wait.deadlines)
    return [Note("RoundWaits", f"{why}{wait.reason}", fragment=current.fragment), *settle(state, current, now)]


def _wait(state: EngineState, current: Round, now: float) -> Wait:
    assert current.launched_at is not None
    candidates, speed = [], 0.0
    for record in state.ordered_learners:
        if record.state != LearnerState.TRAINING:
            continue
        speed += record.tokens_per_second
        request = current.asked.get(record.id)
        if request is None or request.since is None or current.answered(record.id):
            continue
        stake = float(record.tokens - record.received_tokens[current.fragment])
        usual, deviation = state.usual_answer_seconds(record, current.fragment), record.answer_seconds.deviation
        candidates.append(Candidate(record.id, request.since, usual, deviation, stake, missed=record.missed))
    step_seconds = state.quorum_step_seconds
    bound_at = current.launched_at + state.options.overlap_limit * step_seconds
    return wait_for(candidates, now, bound_at, tokens_per_second=speed, step_seconds=step_seconds)


def settle(state: EngineState, current: Round, now: float) -> list[Action]:
    """Close a round that waits for no more learners; otherwise set its timer for the end of its wait."""
    unanswered = _unanswered(state, current)
    if not unanswered:
        return _close(state, current, now, "every learner that is training has answered")
    if state.options.rules == Rules.ARRIVED:
        over = current.wakes_at is None
        return _close(state, current, now, "the grace window is over") if over else []
    awaited = [current.deadlines[name] for name in unanswered if name in current.deadlines]
    in_grace = any(_may_come_in_grace(state, current, name) for name in unanswered if name not in current.deadlines)
    until = max([*awaited, current.grace_until] if in_grace else awaited, default=now)
    if until <= now:
        return _close(state, current, now, "the wait is over")
    if until == current.wakes_at:
        return []
    current.wakes_at = until
    return [SetTimer(round_timer(current.fragment), until)]


def _may_come_in_grace(state: EngineState, current: Round, name: str) -> bool:
    """Whether the grace window applies to this learner: it is not ready yet, or may still answer within the window."""
    request, record = current.asked[name], state.learners[name]
    if request.since is None:
        return True
    usual = state.usual_answer_seconds(record, current.fragment)
    return usual is None or request.since + usual <= current.grace_until


def _unanswered(state: EngineState, current: Round) -> list[str]:
    """Learners that were asked, train, and have not answered, by id."""
    return [
        name
        for name in sorted(current.asked)
        if not current.answered(name) and state.learners[name].state == LearnerState.TRAINING
    ]


def _close(state: EngineState, current: Round, now: float, why: str) -> list[Action]:
    """Freeze the members and order the merge."""
    current.closed_at = now
    for name, event in current.arrived.items():
        state.learners[name].frozen[event.fragment] = (event.incarnation, event.version, event.attempt)
    accounting.frozen(state, current)
    raw = {
        name: merge_weights.token_weight(event.tokens, event.steps) if state.options.token_weights else 1.0
        for name, event in current.arrived.items()
    }
    shares = merge_weights.normalized(raw)
    members = tuple(
        Member(
            name,
            event.incarnation,
            event.attempt,
            event.base_version,
            event.steps,
            event.tokens,
            shares[name],
            event.digest,
        )
        for name, event in sorted(current.arrived.items())
    )
    actions: list[Action] = [CancelTimer(round_timer(current.fragment))]
    for record in state.ordered_learners:
        if record.working and record.id not in current.arrived:
            text = (
                "it had made no step" if record.id in current.declined else "its outer gradient did not arrive in time"
            )
            actions.append(Note("LearnerExcluded", text, record.id, current.fragment))
            if record.id in current.asked and record.id not in current.declined:
                requests.shut_out(state, record, current, now)
    reason = f"syncer step {current.step}: {len(members)} learner(s), {why}"
    return [*actions, Merge(current.fragment, current.version, members, reason)]


def _abandon_empty(state: EngineState, current: Round) -> list[Action]:
    del state.rounds[current.fragment]
    if state.options.rules >= Rules.GUARDED:
        state.asked_before[current.fragment] = state.asked_before.get(current.fragment, {}) | current.asked
    reason = "no learner had made a step since it received the fragment"
    return [CancelTimer(round_timer(current.fragment)), Note("RoundAbandoned", reason, fragment=current.fragment)]


def _overlap_steps(state: EngineState) -> int:
    """The current tau."""
    least, allowed = state.options.schedule.overlap, state.in_flight.allowed
    return least if allowed == state.in_flight.least else max(least, state.options.schedule.spans(allowed))


def _grace(state: EngineState) -> GraceWindow:
    step_seconds = state.quorum_step_seconds
    durations = Durations(step_seconds, state.quorum_seconds.or_else(0.0), state.sync_seconds.or_else(0.0))
    return grace_window(
        durations,
        overlap=_overlap_steps(state),
        safety=state.options.grace_safety,
        maximum_seconds=state.options.grace_maximum_seconds,
    )
