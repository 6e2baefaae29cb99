"""Runs the rounds, one per syncer step: launch, quorum, wait, close, merge, broadcast.

A round asks every learner that has the model for one fragment (`requests`). It has its quorum when it is due and K
learners have answered, at least one of them with an outer gradient. Then it waits for the others, and closes
(`closing`). Late, repeated and stale outer gradients are dropped with a reason. A round never gives up on a learner
that has a session: an unanswered request is repeated under a new attempt number, after twice as long each time, so that
a fragment gets through even on a slow link.
"""

from dataclasses import dataclass

from diloco.core import accounting, closing, healing, pace, recovery, requests, returns
from diloco.core.actions import Action, Broadcast, CancelTimer, Discard, Note, SetTimer
from diloco.core.closing import round_timer
from diloco.core.events import FragmentApplied, FragmentArrived, FragmentDeclined, FragmentLate, Merged
from diloco.core.leases import SLOW_STEPS, heard
from diloco.core.options import Rules
from diloco.core.state import EngineState, LearnerRecord, Round
from diloco.spec.syncer_status import Phase

PATIENCE = 4
"""A request is repeated after this many times the usual time to a quorum (ours)."""
_REPEATED = "it was received before"


def launch_due(state: EngineState, now: float) -> list[Action]:
    """Launch every syncer step that is due, and send requests ahead for later ones."""
    actions: list[Action] = []
    schedule = state.options.schedule
    while state.phase == Phase.TRAINING:
        step = state.launched + 1
        fragment = schedule.fragment(step)
        current = state.rounds.get(fragment)
        working = [record for record in state.learners.values() if record.working]
        ready = sum(_is_due(state, record, fragment) for record in working)
        if (current is not None and current.launched_at is not None) or ready < state.quorum:
            break
        step_seconds = state.quorum_step_seconds
        limit_seconds = max(state.options.lease_seconds, SLOW_STEPS * step_seconds)
        if returns.in_flight(state, now, limit_seconds) >= state.in_flight.allowed:
            state.in_flight.held_back()
            break
        state.launched = step
        clocks = {record.id: record.clock for record in working}
        pace.pull_along(schedule, step, clocks)
        for name, clock in clocks.items():
            state.learners[name].clock = clock
            state.learners[name].turn_steps[fragment] = state.learners[name].step
        if current is None:
            current = Round(step, fragment, state.versions[fragment] + 1, opened_at=now)
            state.rounds[fragment] = current
        current.launched_at = now
        reason = f"syncer step {step}, due at inner step {schedule.due(step)}: {ready} learner(s) have reached it"
        actions.append(Note("RoundOpened", reason, fragment=fragment))
        actions += requests.ask_at_launch(state, current, now, reason)
        actions.append(SetTimer(round_timer(fragment), now + _patience(state, current)))
        actions += closing.check(state, current, now)
        requests.plan_leads(state)
    return actions + requests.ask_ahead(state, now)


def _is_due(state: EngineState, record: LearnerRecord, fragment: int) -> bool:
    """Whether a learner counts towards the launch of the next syncer step, which is this fragment's."""
    options = state.options
    if pace.reached(options.schedule, state.launched, record.clock):
        return True
    held = record.step - record.turn_steps[fragment]
    return pace.overdue(options.schedule, options.max_staleness_steps, held)


def learner_ready(state: EngineState, learner: str, now: float) -> list[Action]:
    """Ask a learner that has just begun to train for the fragments under way that have no quorum yet."""
    record = state.learners[learner]
    if not record.working:
        return []
    reason = "began to train while the fragment was under way"
    return [
        requests.ask(state, current, record, now, reason)
        for current in _ordered(state)
        if current.quorum_at is None and current.launched_at is not None and learner not in current.arrived
    ]


def stepped(state: EngineState, learner: str, now: float) -> list[Action]:
    """Process a learner's step: it may now have something to send."""
    record = state.learners[learner]
    if state.options.rules == Rules.ARRIVED or not record.working:
        return []
    actions: list[Action] = []
    for current in requests.became_ready(state, record, now):
        if current.quorum_at is not None and current.closed_at is None:
            actions += closing.plan_wait(state, current, now, f"{learner} is ready now; ")
    for current in _ordered(state):
        if current.quorum_at is None and current.arrived and learner in current.declined:
            actions += closing.check(state, current, now)
    return actions


def learners_left(state: EngineState, now: float) -> list[Action]:
    """Check the open rounds after learners were given up or quarantined, or the plan has changed.

    One may have its quorum now.
    """
    if state.options.rules < Rules.GUARDED or state.options.quorum == 1:
        return []
    actions: list[Action] = []
    if state.quorum < state.options.quorum:
        reason = (
            f"sync.quorum is {state.options.quorum}, but only {state.quorum} learner(s) are left: these are the quorum"
        )
        actions.append(Note("QuorumFollows", reason))
    for current in _ordered(state):
        actions += closing.check(state, current, now)
    return actions


def arrived(state: EngineState, event: FragmentArrived, now: float) -> list[Action]:
    """An outer gradient is complete: add it to its round, or drop it."""
    record = heard(state, event.learner, event.incarnation, now)
    current = state.rounds.get(event.fragment)
    if state.options.rules >= Rules.GUARDED and _counts_already(state, current, event):
        # Dropping it would drop the one that counts, as they share their key.
        return [Note("Repeated", _REPEATED, event.learner, event.fragment)]
    problem = _problem(state, current, event) if record else _Problem("its session is over")
    if record is not None and problem is not None:
        requests.answered_late(state, record, event, now)
    if problem is not None:
        accounting.dropped(state, record, event)
        if problem.repeated:  # under the earlier rules
            return [Note("Repeated", problem.reason, event.learner, event.fragment)]
        return [_discard(event, problem.reason)]
    assert record is not None
    assert current is not None
    record.pushed_bytes += event.payload_bytes
    if event.steps <= 0 or event.tokens <= 0:
        current.declined.add(event.learner)
        reason = "it covers no steps or no tokens, so its weight is 0"
        return [_discard(event, reason), *closing.check(state, current, now)]
    requests.answered(state, record, current.fragment, current.asked[event.learner], now)
    current.declined.discard(event.learner)
    current.arrived[event.learner] = event
    record.account.captured(event.fragment, event.version, event.base_version, event.steps)
    return closing.check(state, current, now)


def late(state: EngineState, event: FragmentLate, now: float) -> list[Action]:
    """Record how long a learner took whose push was refused because its round is over."""
    record = heard(state, event.learner, event.incarnation, now)
    if record is not None:
        requests.answered_late(state, record, event, now)
    return []


def _counts_already(state: EngineState, current: Round | None, event: FragmentArrived) -> bool:
    """Whether this very outer gradient was reported before and is waiting, frozen or merged."""
    here = current.arrived.get(event.learner) if current is not None else None
    if here is not None and current is not None and current.version == event.version:
        return (here.incarnation, here.attempt) == (event.incarnation, event.attempt)
    record = state.learners.get(event.learner)
    key = (event.incarnation, event.version, event.attempt)
    return record is not None and record.frozen.get(event.fragment) == key


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why an outer gradient cannot count."""

    reason: str
    repeated: bool = False
    """The same outer gradient is already in the round. Dropping this report must not drop that one."""


def _problem(state: EngineState, current: Round | None, event: FragmentArrived) -> _Problem | None:
    """Why an admitted learner's outer gradient cannot count; None: it can."""
    if current is None or current.version != event.version:
        have = state.versions[event.fragment]
        return _Problem(f"late: the round for version {event.version} is over, the fragment is at version {have}")
    if current.closed_at is not None:
        return _Problem(f"late: the members of version {event.version} are frozen")
    if not _is_asked_for(current, event):
        return _Problem(f"attempt {event.attempt} was not requested, or no longer is")
    if event.learner in current.arrived:
        repeated = state.options.rules < Rules.GUARDED
        return _Problem(_REPEATED if repeated else "the learner has already sent it", repeated)
    lag = current.version - 1 - event.base_version
    if not 0 <= lag <= state.options.max_version_lag:
        allowed = state.options.max_version_lag
        return _Problem(f"measured from version {event.base_version}, {lag} behind; sync.maxVersionLag is {allowed}")
    return None


def _is_asked_for(current: Round, event: FragmentArrived | FragmentDeclined) -> bool:
    request = current.asked.get(event.learner)
    return request is not None and (request.incarnation, request.attempt) == (event.incarnation, event.attempt)


def declined(state: EngineState, event: FragmentDeclined, now: float) -> list[Action]:
    """Process a learner's answer that it has nothing to send."""
    record = heard(state, event.learner, event.incarnation, now)
    current = state.rounds.get(event.fragment)
    if (
        record is None
        or current is None
        or current.version != event.version
        or not _is_asked_for(current, event)
        or event.learner in current.arrived
    ):
        return []
    record.account.declined(event.fragment, event.version)
    current.declined.add(event.learner)
    healed = healing.declined(state, event, now) if event.broken else []
    return healed or closing.check(state, current, now)


def lost(state: EngineState, learner: str, now: float, *, diverged: bool = False) -> list[Action]:
    """End the wait for a learner whose session is over, or that is in quarantine.

    An outer gradient that was received in full still counts, unless its learner has ``diverged``.
    """
    actions: list[Action] = _take_back(state, learner, now) if diverged else []
    returns.lost(state, learner, now)
    for current in _ordered(state):
        current.asked.pop(learner, None)
        if state.options.rules >= Rules.GUARDED:
            current.declined.discard(learner)
        actions += closing.check(state, current, now)
    return actions


def _take_back(state: EngineState, learner: str, now: float) -> list[Action]:
    """Drop a learner's outer gradients from the rounds whose members are not frozen."""
    actions: list[Action] = []
    for current in _ordered(state):
        event = current.arrived.get(learner)
        if event is None or current.closed_at is not None:
            continue
        del current.arrived[learner]
        actions.append(_discard(event, "its learner has diverged"))
        if current.quorum_at is not None and (not current.arrived or closing.answers(state, current) < state.quorum):
            current.quorum_at = current.wakes_at = None
            current.deadlines.clear()
            actions.append(SetTimer(round_timer(current.fragment), now + _patience(state, current)))
    return actions


def timer(state: EngineState, fragment: int, now: float) -> list[Action]:
    """End the wait of a round that has its quorum; otherwise repeat unanswered requests."""
    current = state.rounds.get(fragment)
    if current is None or current.closed_at is not None or current.launched_at is None:
        return []
    if current.quorum_at is not None:
        current.wakes_at = None
        return closing.settle(state, current, now)
    current.attempts += 1
    unanswered = [record for record in state.ordered_learners if record.working and not current.answered(record.id)]
    # A learner that had nothing to send may have made steps since.
    if not unanswered:
        unanswered = [record for record in state.ordered_learners if record.working and record.id in current.declined]
        current.declined.clear()
    waited = now - current.launched_at
    reason = f"no quorum after {waited:.1f} s; the request is repeated"
    asks: list[Action] = [requests.ask(state, current, record, now, reason) for record in unanswered]
    return [*asks, SetTimer(round_timer(fragment), now + _patience(state, current))]


def merged(state: EngineState, event: Merged, now: float) -> list[Action]:
    """Count the tokens of a finished merge, and announce the new version to the learners."""
    current = state.rounds.get(event.fragment)
    if current is None or current.version != event.version or current.closed_at is None:
        return []
    del state.rounds[event.fragment]
    state.asked_before.pop(event.fragment, None)
    state.versions[event.fragment] = event.version
    state.merges += 1
    state.merge_seconds.add(event.seconds)
    returns.merged(state, current)
    share = state.options.shares[event.fragment]
    left_out = {one.learner: one.reason for one in event.left_out}
    counted = {name: one for name, one in current.arrived.items() if not event.failed and name not in left_out}
    for name, contribution in counted.items():
        record = state.learners[name]
        _merged_with(state, record)
        healing.merged_with(state, record, event.fragment)
        if record.recovering is not None and contribution.incarnation == record.recovering.incarnation:
            state.recoveries.add(recovery.merged(record.recovering, name, now, state.elapsed(now)))
            record.recovering = None
        state.fragment_tokens[event.fragment] += contribution.tokens
        record.merged_tokens += share * contribution.tokens
    accounting.merged(state, current, counted)
    notes = [_left_out(state, event, name, reason) for name, reason in left_out.items() if name in current.arrived]
    for name in current.arrived:
        state.learners[name].merged_into[event.fragment] = event.version
    receivers = tuple(
        (record.id, record.incarnation, record.id in counted) for record in state.ordered_learners if record.present
    )
    reason = f"version {event.version} was merged from {len(counted)} learner(s)"
    healed: list[Action] = []
    for one in event.left_out:
        sent = current.arrived.get(one.learner)
        if sent is not None:
            healed += healing.left_out(state, one, sent, len(counted), now)
    return [*notes, Broadcast(event.fragment, event.version, receivers, reason), *healed]


def _merged_with(state: EngineState, record: LearnerRecord) -> None:
    record.merged_since_left_out += 1
    if record.merged_since_left_out >= state.options.schedule.fragments:
        record.left_out_lately, record.left_out_first_reason = 0, ""


def _left_out(state: EngineState, event: Merged, name: str, reason: str) -> Note:
    record = state.learners[name]
    record.left_out += 1
    record.left_out_reason = reason
    record.left_out_first_reason = record.left_out_first_reason or reason
    record.left_out_lately += 1
    record.merged_since_left_out = 0
    text = f"its outer gradient is not in version {event.version}: {reason}"
    return Note("MemberLeftOut", text, name, event.fragment)


def applied(state: EngineState, event: FragmentApplied, now: float) -> list[Action]:
    """Note that a learner trains on a version."""
    record = heard(state, event.learner, event.incarnation, now)
    if record is None:
        return []
    if event.version > record.versions[event.fragment]:
        record.received_steps[event.fragment] = record.step
        record.received_tokens[event.fragment] = record.tokens
    record.account.received(event.fragment, event.version, event.step or record.account.step)
    record.versions[event.fragment] = max(record.versions[event.fragment], event.version)
    returns.applied(state, event.learner, event.fragment, event.version, now)
    return []


def abandon_open(state: EngineState, reason: str) -> list[Action]:
    """End the rounds whose members are not frozen yet."""
    actions: list[Action] = []
    for current in _ordered(state):
        if current.closed_at is None:
            del state.rounds[current.fragment]
            actions += [
                CancelTimer(round_timer(current.fragment)),
                Note("RoundAbandoned", reason, fragment=current.fragment),
            ]
            actions += [_discard(event, reason) for _, event in sorted(current.arrived.items())]
    return actions


def _patience(state: EngineState, current: Round) -> float:
    usual = max(state.options.lease_seconds, PATIENCE * state.quorum_seconds.or_else(0.0))
    return float(usual * 2 ** min(current.attempts, 10))


def _discard(event: FragmentArrived, reason: str) -> Action:
    return Discard(event.learner, event.incarnation, event.fragment, event.version, event.attempt, reason)


def _ordered(state: EngineState) -> list[Round]:
    return [state.rounds[fragment] for fragment in sorted(state.rounds)]
