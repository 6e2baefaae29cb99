"""Decides which learners are asked for which fragment, and when; measures how long they take to answer.

Every learner that has the model is asked for every fragment at the latest when its round is launched. One that takes
long to answer is asked ahead of the launch, by its lead (see `leads`), for rounds that are not due yet; its
answer is kept until they are.
"""

from diloco.core.engine.actions import Action, AskFragment
from diloco.core.engine.events import FragmentArrived, FragmentLate
from diloco.core.engine.records import LearnerRecord, Request, Round
from diloco.core.engine.rounds import unanswered
from diloco.core.engine.rounds.leads import AnswerTime, Leads, best_leads
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import LearnerState

LONGEST_LEAD = 2
"""Leads are at most the interval divided by this (ours): if less than half of a learner's work counts, a longer
interval helps it more."""


def ask(state: EngineState, current: Round, record: LearnerRecord, now: float, reason: str) -> AskFragment:
    """Ask a learner for a round's fragment, possibly again."""
    previous = current.asked.get(record.id)
    if previous is None and current.fragment in state.asked_before:
        previous = state.asked_before[current.fragment].get(record.id)
    attempt = 1 if previous is None else previous.attempt + 1
    since = now if state.is_ready(record, current.fragment) else None
    current.asked[record.id] = Request(record.incarnation, current.version, attempt, since)
    return AskFragment(record.id, record.incarnation, current.fragment, current.version, attempt, reason)


def ask_at_launch(state: EngineState, current: Round, now: float, reason: str) -> list[Action]:
    """Ask every learner that was not asked ahead, or had nothing to send then and has now."""
    asks: list[Action] = []
    for record in state.roster.working.values():
        again = may_send_now(state, current, record)
        if again:
            del current.declined[record.id]
        if again or record.id not in current.asked:
            asks.append(ask(state, current, record, now, reason))
    return asks


def may_send_now(state: EngineState, current: Round, record: LearnerRecord) -> bool:
    """Whether a learner that had nothing to send has made a step since, and may have something now."""
    declined = current.declined.get(record.id)
    return declined is not None and record.step > declined and state.is_ready(record, current.fragment)


def ask_ahead(state: EngineState, learner: str | None, now: float) -> list[Action]:
    """Ask learners for the rounds within their lead: ``learner``, or all if something has changed for all of them."""
    roster, clock = state.roster, state.roster.quorum_clock
    if clock is None:
        return []
    if clock == roster.asked_ahead_at:
        with_lead = [roster.with_lead[learner]] if learner in roster.with_lead else []
    else:
        with_lead = list(roster.with_lead.values())
        roster.asked_ahead_at = clock
    if not with_lead:
        return []
    longest = roster.longest_lead_steps
    schedule = state.options.schedule
    actions: list[Action] = []
    # At most one round asks for a fragment at a time.
    for step in range(state.launched + 1, state.launched + schedule.fragments):
        early, fragment = schedule.due(step) - clock, schedule.fragment(step)
        current = state.rounds.get(fragment)
        if early > longest or (current is not None and current.step != step):
            break
        size = state.options.sizes[fragment]
        steps = _leads(state, size).steps
        for record in with_lead:
            asked = current is not None and record.id in current.asked
            if asked or early > steps.get(record.id, 0) or not state.is_ready(record, fragment):
                continue
            usual = record.answer_seconds
            times = f"its answer takes {usual.of(size):.3f} s, mean deviation {usual.deviation:.3f} s"
            reason = f"asked {early} step(s) before syncer step {step} is due: {times}"
            actions.append(ask(state, state.opened(step), record, now, reason))
    return actions


def became_ready(state: EngineState, record: LearnerRecord, now: float) -> list[Round]:
    """Rounds for which a learner was asked earlier, and only now has an outer gradient to send."""
    rounds = []
    for current in state.rounds.values():
        if (
            record.id in current.asked
            and (request := current.asked[record.id]).since is None
            and not current.answered(record.id)
            and state.is_ready(record, current.fragment)
        ):
            request.since = now
            rounds.append(current)
    return rounds


def answered(state: EngineState, record: LearnerRecord, fragment: int, request: Request, now: float) -> None:
    """Measure how long a learner took whose payload is complete."""
    record.missed_since = None
    if request.since is not None:
        record.answer_seconds.add(now - request.since, state.options.sizes[fragment])


def shut_out(state: EngineState, record: LearnerRecord, current: Round, now: float) -> None:
    """Note that a round closed without the answer of a learner that was asked.

    If it was ready, its answer's duration is not known yet. Twice the time that has passed is assumed, so that the
    learner is asked earlier next time.
    """
    request = current.asked[record.id]
    if request.since is not None:
        missed(record, current)
        record.answer_seconds.at_least(2 * (now - request.since), state.options.sizes[current.fragment])
        record.late[current.fragment] = request


def missed(record: LearnerRecord, current: Round) -> None:
    """Note that a round has waited in vain for a learner: none does before it answers."""
    if record.missed_since is None and record.id in current.deadlines:
        record.missed_since = current.asked[record.id].since


def answered_late(
    state: EngineState, record: LearnerRecord, event: FragmentArrived | FragmentLate, now: float
) -> list[Action]:
    """Note an answer that comes after its round: the learner answers again, and took at least this long."""
    request = record.late.get(event.fragment)
    if request is None or request.key != event.key:
        return []
    del record.late[event.fragment]
    answered(state, record, event.fragment, request, now)
    return unanswered.answered_late(state, record, now)


def plan_leads(state: EngineState) -> None:
    """Set every learner's lead from the measurements."""
    state.leads.clear()
    shares = state.options.shares
    largest = state.options.sizes[shares.index(max(shares))]
    usual, longest = _leads(state, 1.0).steps, _leads(state, largest).steps
    for record in state.learners.values():
        record.lead_steps = usual.get(record.id, 0)
        record.longest_lead_steps = max(record.lead_steps, longest.get(record.id, 0))
    state.roster.gather_leads()


def _leads(state: EngineState, size: float) -> Leads:
    """The leads for fragments of a size relative to the mean, computed once per launch."""
    found = state.leads.get(size)
    if found is None:
        times = {
            record.id: AnswerTime(usual.of(size), usual.deviation, record.tokens_per_second)
            for record in state.learners.values()
            if record.state == LearnerState.TRAINING and (usual := record.answer_seconds).mean is not None
        }
        maximum_steps = state.options.schedule.interval // LONGEST_LEAD
        found = state.leads[size] = best_leads(times, state.quorum_step_seconds, maximum_steps)
    return found
