"""Runs the rounds, one per syncer step: launch, quorum, wait, close, merge, broadcast.

A round asks every learner that has the model for one fragment (`requests`). Once it has its quorum (`quorum`), it
waits for the others, and closes (`round_end`). Late, repeated and stale outer gradients are dropped with a reason.
"""

from diloco.core.account import recovery
from diloco.core.account.time_class import TimeClass
from diloco.core.engine.actions import Action, Broadcast, Discard, Note, NoteKind
from diloco.core.engine.events import (
    Attempt,
    FragmentApplied,
    FragmentArrived,
    FragmentDeclined,
    FragmentLate,
    LeftOut,
    Merged,
)
from diloco.core.engine.members import accounting, comparison, divergence, standing
from diloco.core.engine.members.leases import SLOW_STEPS, heard
from diloco.core.engine.records import LearnerRecord, Round
from diloco.core.engine.rounds import in_flight, quorum, requests, round_end, unanswered
from diloco.core.engine.state import EngineState
from diloco.core.merge.outliers import NOT_FINITE
from diloco.spec.status.engine import LearnerState, Phase


def launch_due(state: EngineState, learner: str | None, now: float) -> list[Action]:
    """Launch every syncer step that is due, and send requests ahead for later ones, after an event of ``learner``."""
    roster, schedule = state.roster, state.options.schedule
    clock = roster.quorum_clock
    if clock is None or state.phase != Phase.TRAINING or not state.begun:
        roster.asked_ahead_at = None
        return []
    actions: list[Action] = []
    # A launch moves no clock to where the next step is due, so that the clock from before it will do.
    while (clock >= roster.next_due or roster.overdue) and (ready := _ready(state, now)) >= roster.quorum:
        if not _may_launch(state, now):
            break
        due = f"due at inner step {schedule.due(state.launched + 1)}"
        actions += _launch(state, now, f"{due}: {ready} learner(s) have reached it")
    if learner in roster.with_lead or clock != roster.asked_ahead_at:
        actions += requests.ask_ahead(state, learner, now)
    return actions


def launch_for_those_that_wait(state: EngineState, now: float) -> list[Action]:
    """Launch the next syncer step for learners at their staleness bound, if a quorum does not reach it for a lease.

    The others may never do. Whoever waits at its bound loses no step by being asked early.
    """
    latest = state.turns_at[state.options.schedule.fragment(state.launched)] if state.launched else None
    since = state.elapsed_since if latest is None else latest
    if state.phase != Phase.TRAINING or since is None or now - since < state.options.lease_seconds:
        return []
    if any(current.launched_at is not None for current in state.rounds.values()) or not _may_launch(state, now):
        return []
    waiting = sum(map(state.waits_at_bound, state.roster.working.values()))
    if not waiting:
        return []
    return _launch(state, now, f"{waiting} learner(s) wait for it, and fewer than {state.quorum} have reached it")


def _may_launch(state: EngineState, now: float) -> bool:
    """Whether the next fragment, and another one in flight, may be launched."""
    current = state.rounds.get(state.roster.next_fragment)
    if current is not None and current.launched_at is not None:
        return False
    if len(state.rounds) + len(state.returning) < state.overlap.allowed:  # and as many are in flight at most
        return True
    limit_seconds = max(state.options.lease_seconds, SLOW_STEPS * state.quorum_step_seconds)
    if in_flight.in_flight(state, now, limit_seconds) < state.overlap.allowed:
        return True
    state.overlap.held_back()
    return False


def _launch(state: EngineState, now: float, why: str) -> list[Action]:
    """Launch the next syncer step."""
    roster, schedule = state.roster, state.options.schedule
    step, fragment, due = state.launched + 1, roster.next_fragment, roster.next_due
    state.launched, state.turns_at[fragment] = step, now
    current = state.opened(step)
    current.launched_at = now
    least_clock = schedule.least_clock(step)
    for record in roster.working.values():
        if record.clock >= due or record.id in roster.overdue:
            current.reached.add(record.id)
        record.clock = max(record.clock, least_clock)
        record.turn_steps[fragment] = record.step
    reason = f"syncer step {step}, {why}"
    actions: list[Action] = [Note(NoteKind.ROUND_OPENED, reason, fragment=fragment)]
    actions += requests.ask_at_launch(state, current, now, reason)
    actions.append(quorum.patience(state, current, now))
    actions += quorum.check(state, current, now)
    comparison.compare(state)
    roster.gather_clocks()
    requests.plan_leads(state)
    return actions


def _ready(state: EngineState, now: float) -> int:
    """How many learners have reached the next syncer step, by their clock or because its fragment's turn is overdue.

    A report of many steps, of which some were made before the last turn, does not make the next one overdue at once.
    """
    roster, overdue = state.roster, len(state.roster.overdue)
    if overdue:
        turn_at, interval = state.turns_at[roster.next_fragment], state.options.schedule.interval
        if turn_at is not None and now - turn_at < interval * state.quorum_step_seconds:
            overdue = 0
    return roster.clocks.at_least(roster.next_due) + overdue


def learner_ready(state: EngineState, record: LearnerRecord, now: float) -> list[Action]:
    """Ask a learner that has just begun to train for the fragments under way that have no quorum yet."""
    reason = "began to train while the fragment was under way"
    return [
        requests.ask(state, current, record, now, reason)
        for current in _ordered(state)
        if current.quorum_at is None and current.launched_at is not None and record.id not in current.arrived
    ]


def stepped(state: EngineState, record: LearnerRecord, now: float) -> list[Action]:
    """Go on with the rounds for which a learner that has made a step may now have something to send."""
    actions: list[Action] = []
    for current in requests.became_ready(state, record, now):
        if current.quorum_at is not None and current.closed_at is None:
            actions += round_end.plan_wait(state, current, now, f"{record.id} is ready now; ")
    declined = [fragment for fragment, current in state.rounds.items() if record.id in current.declined]
    for current in [state.rounds[fragment] for fragment in sorted(declined)]:
        actions += quorum.stepped(state, current, record, now)
    return actions


def learners_left(state: EngineState, now: float) -> list[Action]:
    """Check the open rounds after learners were given up or quarantined, or the plan has changed.

    One may have its quorum now.
    """
    if state.options.quorum == 1:
        return []
    actions: list[Action] = []
    if state.quorum < state.options.quorum:
        reason = (
            f"sync.quorum is {state.options.quorum}, but only {state.quorum} learner(s) are left: these are the quorum"
        )
        actions.append(Note(NoteKind.QUORUM_FOLLOWS, reason))
    for current in _ordered(state):
        actions += quorum.check(state, current, now)
    return actions


def arrived(state: EngineState, event: FragmentArrived, now: float) -> list[Action]:
    """An outer gradient is complete: add it to its round, or drop it."""
    record = heard(state, event, now)
    current = state.rounds.get(event.fragment)
    if _counts_already(state, current, event):
        # Dropping it would drop the one that counts, as they share their key.
        return [Note(NoteKind.REPEATED, "it was received before", event.learner, event.fragment)]
    if record is None:
        return [_discard(event, "its session is over")]
    problem = _problem(state, current, event)
    if problem is not None:
        late = requests.answered_late(state, record, event, now)
        return [_discard(event, problem), *late]
    assert current is not None
    record.pushed_bytes += event.payload_bytes
    counts = record.credit.of(event, state.options.schedule.interval, record.pace)
    if counts.tokens <= 0:
        current.declined[event.learner] = record.step
        reason = "it covers no steps or no tokens that count, so its weight is 0"
        return [_discard(event, reason), *quorum.check(state, current, now)]
    requests.answered(state, record, current.fragment, current.asked[event.learner], now)
    current.declined.pop(event.learner, None)
    current.arrived[event.learner] = counts
    record.account.captured(event.fragment, event.base_version, counts.steps)
    return [*unanswered.answered(state, record, now), *quorum.check(state, current, now)]


def late(state: EngineState, event: FragmentLate, now: float) -> list[Action]:
    """Record how long a learner took whose push was refused because its round is over."""
    record = heard(state, event, now)
    return [] if record is None else requests.answered_late(state, record, event, now)


def _counts_already(state: EngineState, current: Round | None, event: FragmentArrived) -> bool:
    """Whether this very outer gradient was reported before and is waiting, frozen or merged."""
    here = current.arrived.get(event.learner) if current is not None and current.version == event.version else None
    if here is not None:
        return here.key == event.key
    record = state.learners.get(event.learner)
    return record is not None and record.frozen.get(event.fragment) == event.key


def _problem(state: EngineState, current: Round | None, event: FragmentArrived) -> str | None:
    """Why an admitted learner's outer gradient cannot count; None: it can."""
    if current is None or current.version != event.version:
        have = state.versions[event.fragment]
        return f"late: the round for version {event.version} is over, the fragment is at version {have}"
    if current.closed_at is not None:
        return f"late: the members of version {event.version} are frozen"
    if not _is_asked_for(current, event):
        return f"attempt {event.attempt} was not requested, or no longer is"
    if event.learner in current.arrived:
        return "the learner has already sent it"
    lag = current.version - 1 - event.base_version
    if not 0 <= lag <= state.options.max_version_lag:
        allowed = state.options.max_version_lag
        return f"measured from version {event.base_version}, {lag} behind; sync.maxVersionLag is {allowed}"
    return None


def _is_asked_for(current: Round, event: Attempt) -> bool:
    request = current.asked.get(event.learner)
    return request is not None and request.key == event.key


def declined(state: EngineState, event: FragmentDeclined, now: float) -> list[Action]:
    """Process a learner's answer that it has nothing to send."""
    record = heard(state, event, now)
    current = state.rounds.get(event.fragment)
    if record is None or current is None or not _is_asked_for(current, event) or event.learner in current.arrived:
        return []
    current.declined[event.learner] = record.step
    actions: list[Action] = []
    if event.broken:  # nobody says so without cause, so it convinces as a merge with another member does
        broken = LeftOut(event.learner, NOT_FINITE, broken=True)
        actions = divergence.left_out(state, broken, event.fragment, (event.learner,), now)
    return actions if event.learner in state.gone else [*actions, *quorum.check(state, current, now)]


def go_on(state: EngineState, now: float) -> list[Action]:
    """Go on without the learners that are gone since the event before."""
    gone, state.gone = state.gone, {}
    fewer_left, state.fewer_left = state.fewer_left, False
    actions: list[Action] = []
    for learner, diverged in gone.items():
        actions += _lost(state, learner, now, diverged=diverged)
    return [*actions, *learners_left(state, now)] if fewer_left else actions


def _lost(state: EngineState, learner: str, now: float, *, diverged: bool) -> list[Action]:
    """End the wait for a learner whose session is over, or that is in quarantine.

    An outer gradient that was received in full still counts, unless its learner has ``diverged``.
    """
    actions: list[Action] = _take_back(state, learner, now) if diverged else []
    in_flight.lost(state, learner, now)
    awaiting = [one for one in state.rounds.values() if one.launched_at is not None and one.awaits(learner)]
    if awaiting and not diverged:
        record, waited_for = state.learners[learner], any(quorum.is_missing(current) for current in awaiting)
        for current in awaiting:
            requests.missed(record, current)
        actions += unanswered.lost(state, record, now, waited_for=waited_for)
    for current in _ordered(state):
        request = current.asked.pop(learner, None)
        if request is not None and state.learners[learner].state == LearnerState.UNPLANNED:
            # Its session goes on: if it is planned again, the next request must have another number.
            state.asked_before.setdefault(current.fragment, {})[learner] = request
        current.declined.pop(learner, None)
        actions += quorum.check(state, current, now)
    return actions


def _take_back(state: EngineState, learner: str, now: float) -> list[Action]:
    """Drop a learner's outer gradients from the rounds whose members are not frozen."""
    actions: list[Action] = []
    for current in _ordered(state):
        event = current.arrived.get(learner)
        if event is None or current.closed_at is not None:
            continue
        del current.arrived[learner]
        state.learners[learner].account.decided(current.fragment, TimeClass.LOST)
        actions.append(_discard(event, "its learner has diverged"))
        if current.quorum_at is not None and not quorum.is_reached(state, current):
            current.quorum_at = current.wakes_at = None
            current.deadlines.clear()
            actions.append(quorum.patience(state, current, now))
    return actions


def merged(state: EngineState, event: Merged, now: float) -> list[Action]:
    """Count the tokens of a finished merge, and announce the new version to the learners."""
    current = state.rounds.get(event.fragment)
    if current is None or current.version != event.version or current.closed_at is None:
        return []
    state.end(current)
    state.asked_before.pop(event.fragment, None)
    state.versions[event.fragment] = event.version
    if not event.failed:
        state.averaged[event.fragment] = current.averaged
    state.merge_seconds.add(event.seconds)
    in_flight.merged(state, current)
    share = state.options.shares[event.fragment]
    left_out = [one for one in event.left_out if one.learner in current.arrived]
    excluded = {one.learner for one in left_out}
    counted = {name: sent for name, sent in current.arrived.items() if not event.failed and name not in excluded}
    state.count_tokens(event.fragment, sum([sent.tokens for sent in counted.values()]))
    for name, sent in counted.items():
        record = state.learners[name]
        _merged_with(state, record, event.fragment)
        if record.recovering is not None and sent.incarnation == record.recovering.incarnation:
            recovered = recovery.merged(record.recovering, name, now, state.elapsed(now))
            state.recoveries = recovery.with_recovery(state.recoveries, recovered)
            record.recovering = None
        record.merged_tokens += share * sent.tokens
        record.credit.merged(sent)
        record.counted_in[event.fragment] = event.version
    for found in event.cosines:
        if found.learner in counted:
            standing.agreed(state.learners[found.learner].standing, found.cosine)
    accounting.merged(state, current, counted)
    actions: list[Action] = [_left_out(state, event, one) for one in left_out]
    for name in current.arrived:
        state.learners[name].merged_into[event.fragment] = event.version
    receivers = tuple(
        (record.id, record.incarnation, record.id in counted) for record in state.ordered_learners if record.present
    )
    what = f"was merged from {len(counted)} learner(s)" if current.arrived else "is the mean of the last ones"
    reason = f"version {event.version} {what}"
    actions.append(Broadcast(event.fragment, event.version, receivers, reason))
    for one in left_out:
        if current.arrived[one.learner].incarnation == state.learners[one.learner].incarnation:
            actions += divergence.left_out(state, one, event.fragment, counted, now)
    return actions


def _merged_with(state: EngineState, record: LearnerRecord, fragment: int) -> None:
    record.merged_since_left_out += 1
    if record.merged_since_left_out >= state.options.schedule.fragments:
        record.left_out_lately, record.left_out_first_reason = 0, ""
    standing.merged_with(record.standing, fragment, state.options.schedule.fragments)


def _left_out(state: EngineState, event: Merged, found: LeftOut) -> Note:
    record = state.learners[found.learner]
    record.left_out += 1
    record.left_out_reason = found.reason
    record.left_out_first_reason = record.left_out_first_reason or found.reason
    record.left_out_lately += 1
    record.merged_since_left_out = 0
    text = f"its outer gradient is not in version {event.version}: {found.reason}"
    return Note(NoteKind.MEMBER_LEFT_OUT, text, record.id, event.fragment)


def applied(state: EngineState, event: FragmentApplied, now: float) -> list[Action]:
    """Note that a learner trains on a version."""
    record = heard(state, event, now)
    if record is None:
        return []
    fragment, version = event.fragment, event.version
    if version > record.versions[fragment]:
        record.versions[fragment] = version
        # Its report of the step that it received this after may still be on its way.
        record.received_steps[fragment] = max(record.step, event.step)
        record.received_tokens[fragment] = record.credit.tokens
    record.account.received(fragment, version, event.step or record.account.step)
    in_flight.applied(state, event.learner, fragment, version, now)
    return []


def abandon_open(state: EngineState, reason: str) -> list[Action]:
    """End the rounds whose members are not frozen yet."""
    actions: list[Action] = []
    for current in _ordered(state):
        if current.closed_at is None:
            state.end(current)
            actions += quorum.abandoned(current, reason)
            actions += [_discard(event, reason) for _, event in sorted(current.arrived.items())]
    return actions


def _discard(event: FragmentArrived, reason: str) -> Action:
    return Discard(event.learner, event.incarnation, event.fragment, event.version, event.attempt, reason)


def _ordered(state: EngineState) -> list[Round]:
    return [state.rounds[fragment] for fragment in sorted(state.rounds)]
