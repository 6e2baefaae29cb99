"""One syncer step after the other: launch, ask, quorum, grace, close, merge, broadcast.

A round asks every learner that has the model for one fragment. It has its quorum when K learners have answered, at
least one of them with work; then the grace window runs for those that are making steps and have not answered yet; then
the members are frozen and merged. Late, repeated and stale outer gradients are dropped with a reason. A round never
gives up on a learner that is there: an ask without an answer is repeated under a new attempt, each time after twice as
long, so that even a slow link gets a fragment through in the end.
"""

from diloco.core import pace, weights
from diloco.core.actions import Action, AskFragment, Broadcast, CancelTimer, Discard, Member, Merge, Note, SetTimer
from diloco.core.events import FragmentApplied, FragmentArrived, FragmentDeclined, Merged
from diloco.core.grace import Durations, GraceWindow, grace_window
from diloco.core.membership import heard
from diloco.core.state import EngineState, LearnerRecord, LearnerState, Phase, Round

ROUND_TIMER = "round/"
"""With the fragment's number: the grace window's end once there is a quorum, a repeat of unanswered asks before."""
PATIENCE = 4
"""An ask is repeated after this many times the usual time to a quorum (ours)."""


def launch_due(state: EngineState, now: float) -> list[Action]:
    """Begin every syncer step that is due."""
    actions: list[Action] = []
    schedule = state.options.schedule
    while state.phase == Phase.TRAINING and len(state.rounds) < schedule.in_flight:
        step = state.launched + 1
        fragment = schedule.fragment(step)
        clocks = {record.id: record.clock for record in state.ordered_learners if record.working}
        ready = sum(_is_due(state, record, fragment) for record in state.ordered_learners if record.working)
        if fragment in state.rounds or ready < state.options.quorum:
            break
        state.launched = step
        pace.pull_along(schedule, step, clocks)
        for name, clock in clocks.items():
            state.learners[name].clock = clock
            state.learners[name].turn_steps[fragment] = state.learners[name].step
        current = Round(step, fragment, state.versions[fragment] + 1, opened_at=now)
        state.rounds[fragment] = current
        reason = f"syncer step {step}, due at inner step {schedule.due(step)}: {ready} learner(s) are there"
        actions.append(Note("RoundOpened", reason, fragment=fragment))
        actions.extend(_ask(current, record, reason) for record in state.ordered_learners if record.working)
        actions.append(SetTimer(_timer(fragment), now + _patience(state, current)))
    return actions


def _is_due(state: EngineState, record: LearnerRecord, fragment: int) -> bool:
    """Whether a learner counts towards the launch of the next syncer step, which is this fragment's."""
    options = state.options
    if pace.reached(options.schedule, state.launched, record.clock):
        return True
    held = record.step - record.turn_steps[fragment]
    return pace.overdue(options.schedule, options.max_staleness_steps, held)


def learner_ready(state: EngineState, learner: str) -> list[Action]:
    """A learner that has just begun to train is asked for the fragments under way that still lack their quorum."""
    record = state.learners[learner]
    reason = "began to train while the fragment was under way"
    return [
        _ask(current, record, reason)
        for current in _ordered(state)
        if current.quorum_at is None and learner not in current.arrived
    ]


def arrived(state: EngineState, event: FragmentArrived, now: float) -> list[Action]:
    """An outer gradient is here: it belongs to its round, or it is dropped."""
    record = heard(state, event.learner, event.incarnation, now)
    current = state.rounds.get(event.fragment)
    problem = _problem(state, current, event) if record else "it comes from a session that is over"
    if problem is not None or current is None or record is None:
        return [_discard(event, problem or "")]
    record.pushed_bytes += event.payload_bytes
    if event.steps <= 0 or event.tokens <= 0:
        current.declined.add(event.learner)
        return [_discard(event, "no step stands behind it, so its weight is 0"), *_check(state, current, now)]
    current.declined.discard(event.learner)
    current.arrived[event.learner] = event
    return _check(state, current, now)


def _problem(state: EngineState, current: Round | None, event: FragmentArrived) -> str | None:
    """Why an outer gradient of a learner that is in cannot count, if it cannot."""
    if current is None or current.version != event.version:
        have = state.versions[event.fragment]
        return f"late: the round for version {event.version} is over, the fragment is at version {have}"
    if current.closed_at is not None:
        return f"late: the members of version {event.version} are frozen"
    if current.asked.get(event.learner) != (event.incarnation, event.attempt):
        return f"attempt {event.attempt} was not, or is no longer, asked for"
    if event.learner in current.arrived:
        return "it is here already"
    lag = current.version - 1 - event.base_version
    if not 0 <= lag <= state.options.max_version_lag:
        allowed = state.options.max_version_lag
        return f"measured from version {event.base_version}, {lag} behind; sync.maxVersionLag is {allowed}"
    return None


def declined(state: EngineState, event: FragmentDeclined, now: float) -> list[Action]:
    """A learner has nothing to bring."""
    record = heard(state, event.learner, event.incarnation, now)
    current = state.rounds.get(event.fragment)
    if (
        record is None
        or current is None
        or current.version != event.version
        or current.asked.get(event.learner) != (event.incarnation, event.attempt)
        or event.learner in current.arrived
    ):
        return []
    current.declined.add(event.learner)
    return _check(state, current, now)


def lost(state: EngineState, learner: str, now: float) -> list[Action]:
    """Nobody waits for a learner whose session is over. What it had brought in full still counts."""
    actions: list[Action] = []
    for current in _ordered(state):
        current.asked.pop(learner, None)
        actions += _check(state, current, now)
    return actions


def timer(state: EngineState, fragment: int, now: float) -> list[Action]:
    """The grace window's end, or time to repeat what was not answered."""
    current = state.rounds.get(fragment)
    if current is None or current.closed_at is not None:
        return []
    if current.quorum_at is not None:
        return _close(state, current, now, "the grace window is over")
    current.attempts += 1
    unanswered = [
        record
        for record in state.ordered_learners
        if record.working and record.id not in current.arrived and record.id not in current.declined
    ]
    # A learner that had nothing to bring may have made steps since.
    if not unanswered:
        unanswered = [record for record in state.ordered_learners if record.working and record.id in current.declined]
        current.declined.clear()
    waited = now - current.opened_at
    asks: list[Action] = [
        _ask(current, record, f"no quorum after {waited:.1f} s, asked again") for record in unanswered
    ]
    return [*asks, SetTimer(_timer(fragment), now + _patience(state, current))]


def merged(state: EngineState, event: Merged) -> list[Action]:
    """A merge is done: its tokens are in the global model, and learners are told."""
    current = state.rounds.get(event.fragment)
    if current is None or current.version != event.version or current.closed_at is None:
        return []
    del state.rounds[event.fragment]
    state.versions[event.fragment] = event.version
    state.merges += 1
    state.merge_seconds.add(event.seconds)
    state.closed_at[event.fragment] = current.closed_at
    share = state.options.shares[event.fragment]
    counted = {} if event.failed else current.arrived
    for name, contribution in counted.items():
        record = state.learners[name]
        state.fragment_tokens[event.fragment] += contribution.tokens
        record.merged_tokens += share * contribution.tokens
        record.merged_seconds += share * contribution.steps * record.step_seconds.or_else(0.0)
    receivers = tuple(
        (record.id, record.incarnation, record.id in counted) for record in state.ordered_learners if record.present
    )
    reason = f"version {event.version} was merged from {len(counted)} learner(s)"
    return [Broadcast(event.fragment, event.version, receivers, reason)]


def applied(state: EngineState, event: FragmentApplied, now: float) -> list[Action]:
    """A learner trains on a version; the first to do so after a merge ends that merge's synchronization."""
    record = heard(state, event.learner, event.incarnation, now)
    if record is None:
        return []
    record.versions[event.fragment] = max(record.versions[event.fragment], event.version)
    if event.version == state.versions[event.fragment]:
        closed_at = state.closed_at.pop(event.fragment, None)
        if closed_at is not None:
            state.sync_seconds.add(now - closed_at)
    return []


def abandon_open(state: EngineState, reason: str) -> list[Action]:
    """End the rounds whose members are not frozen yet."""
    actions: list[Action] = []
    for current in _ordered(state):
        if current.closed_at is None:
            del state.rounds[current.fragment]
            actions += [
                CancelTimer(_timer(current.fragment)),
                Note("RoundAbandoned", reason, fragment=current.fragment),
            ]
            actions += [_discard(event, reason) for _, event in sorted(current.arrived.items())]
    return actions


def _check(state: EngineState, current: Round, now: float) -> list[Action]:
    """Close the round, open its grace window, or go on waiting."""
    if current.closed_at is not None or current.answers < state.options.quorum:
        return []
    awaited = [name for name in sorted(current.asked) if _awaited(state, current, name)]
    if not current.arrived:
        return [] if awaited else _abandon_empty(state, current)
    opens = current.quorum_at is None
    if current.quorum_at is None:
        current.quorum_at = now
        state.quorum_seconds.add(now - current.opened_at)
    if not awaited:
        return _close(state, current, now, "every learner that is training has answered")
    return _open_grace(state, current, awaited, now) if opens else []


def _awaited(state: EngineState, current: Round, name: str) -> bool:
    """Whether a learner that was asked makes steps and has not answered."""
    answered = name in current.arrived or name in current.declined
    return not answered and state.learners[name].state == LearnerState.TRAINING


def _open_grace(state: EngineState, current: Round, awaited: list[str], now: float) -> list[Action]:
    window = _grace(state)
    if window.seconds <= 0:
        return _close(state, current, now, f"quorum of {state.options.quorum}; {window.reason}")
    reached = f"quorum of {state.options.quorum} after {now - current.opened_at:.3f} s"
    return [
        Note("GraceOpened", f"{reached}, waits for {', '.join(awaited)}: {window.reason}", fragment=current.fragment),
        SetTimer(_timer(current.fragment), now + window.seconds),
    ]


def _close(state: EngineState, current: Round, now: float, why: str) -> list[Action]:
    """Freeze the members and order the merge."""
    current.closed_at = now
    raw = {
        name: weights.token_weight(event.tokens, event.steps) if state.options.token_weights else 1.0
        for name, event in current.arrived.items()
    }
    shares = weights.normalized(raw)
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
    actions: list[Action] = [CancelTimer(_timer(current.fragment))]
    for record in state.ordered_learners:
        if record.working and record.id not in current.arrived:
            text = "had made no step" if record.id in current.declined else "had not brought it in time"
            actions.append(Note("LearnerExcluded", text, record.id, current.fragment))
    reason = f"syncer step {current.step}: {len(members)} learner(s), {why}"
    return [*actions, Merge(current.fragment, current.version, members, reason)]


def _abandon_empty(state: EngineState, current: Round) -> list[Action]:
    del state.rounds[current.fragment]
    reason = "no learner had made a step since it received the fragment"
    return [CancelTimer(_timer(current.fragment)), Note("RoundAbandoned", reason, fragment=current.fragment)]


def _grace(state: EngineState) -> GraceWindow:
    options = state.options
    steps = sorted(
        record.step_seconds.seconds
        for record in state.ordered_learners
        if record.state == LearnerState.TRAINING and record.step_seconds.seconds is not None
    )
    slowest = steps[min(options.quorum, len(steps)) - 1] if steps else 0.0
    durations = Durations(slowest, state.quorum_seconds.or_else(0.0), state.sync_seconds.or_else(0.0))
    return grace_window(
        durations,
        overlap=options.schedule.overlap,
        safety=options.grace_safety,
        maximum_seconds=options.grace_maximum_seconds,
    )


def _patience(state: EngineState, current: Round) -> float:
    usual = max(state.options.lease_seconds, PATIENCE * state.quorum_seconds.or_else(0.0))
    return float(usual * 2 ** min(current.attempts, 10))


def _ask(current: Round, record: LearnerRecord, reason: str) -> AskFragment:
    previous = current.asked.get(record.id)
    attempt = 1 if previous is None else previous[1] + 1
    current.asked[record.id] = (record.incarnation, attempt)
    return AskFragment(record.id, record.incarnation, current.fragment, current.version, attempt, reason)


def _discard(event: FragmentArrived, reason: str) -> Action:
    if reason == "it is here already":  # dropping it would drop the one that counts: they share their key
        return Note("Repeated", reason, event.learner, event.fragment)
    return Discard(event.learner, event.incarnation, event.fragment, event.version, event.attempt, reason)


def _ordered(state: EngineState) -> list[Round]:
    return [state.rounds[fragment] for fragment in sorted(state.rounds)]


def _timer(fragment: int) -> str:
    return f"{ROUND_TIMER}{fragment}"
