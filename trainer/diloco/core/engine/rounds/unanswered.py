"""Learners that leave requests unanswered: the schedule and the quorum go on without them (ours).

Learners report their steps, and say themselves why they send nothing. So neither counts, but only the outer gradients
that arrive in time:

- *Pace.* A learner for which a round was due claims to have the work for it. If rounds end without its outer gradient,
  whether it was late, declined or did not answer, the schedule no longer follows its clock.
- *Quorum.* A round without a quorum repeats its requests. If it waits in vain for a learner that has a session, longer
  than that one usually takes, the quorum no longer counts it. One without a session counts, as `sync.quorum` is what
  the user asked of a merge.

One that no longer counts is asked as before. Its next outer gradient that arrives in time makes it count again at once,
though not as long as before. A late one makes the quorum count it again, for one more wait: on a thin link all may be
late while no round waits for them.
"""

from diloco.core.engine.actions import Action, Note, NoteKind
from diloco.core.engine.members.leases import SLOW_STEPS
from diloco.core.engine.records import UNANSWERED_LIMIT, LearnerRecord, Round
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import LearnerState

PATIENCE = 4
"""A learner is waited for this many times as long as it usually takes; a quorum too (ours)."""


def ended_without(state: EngineState, current: Round, record: LearnerRecord, now: float) -> list[Action]:
    """Note that a round has ended without a learner's outer gradient."""
    if record.id not in current.reached or _is_excused(state, current, record):
        return []
    declined = record.id in current.declined
    reason = "declines requests, although it reports steps" if declined else "does not answer requests in time"
    return _changed(state, record, now, (record.unmerged + 1, record.unanswered), reason)


def waited_for(state: EngineState, current: Round, now: float) -> list[Action]:
    """Note for whom a round has waited in vain that has no quorum."""
    assert current.launched_at is not None
    roster, waited = state.roster, now - current.launched_at
    actions: list[Action] = []
    for name in sorted(roster.remaining - roster.quarantined - roster.unanswering - current.arrived.keys()):
        record = state.learners[name]
        away = not record.present and now - record.last_heard_at > state.options.lease_seconds
        if away or waited < _patience_seconds(state, current, record) or _is_excused(state, current, record):
            continue
        more = UNANSWERED_LIMIT if waited >= state.options.startup_seconds else 1
        reason = f"has sent no outer gradient for a round that waited for it ({record.state.lower()})"
        actions += _changed(state, record, now, (record.unmerged, record.unanswered + more), reason)
    return actions


def lost(state: EngineState, record: LearnerRecord, now: float, *, waited_for: bool) -> list[Action]:
    """Note that a learner's session has ended before it has answered; ``waited_for``: a round has no quorum."""
    reason = "loses its session before it answers"
    return _changed(state, record, now, (record.unmerged + 1, record.unanswered + waited_for), reason)


def answered(state: EngineState, record: LearnerRecord, now: float) -> list[Action]:
    """Note that a learner's outer gradient has arrived in time."""
    record.unanswered_since = None
    return _changed(state, record, now, (record.unmerged - 1, record.unanswered - 1))


def answered_late(state: EngineState, record: LearnerRecord, now: float) -> list[Action]:
    """Note that a learner has answered after its round was over."""
    return _changed(state, record, now, (record.unmerged, min(record.unanswered, UNANSWERED_LIMIT - 1)))


def _is_excused(state: EngineState, current: Round, record: LearnerRecord) -> bool:
    """Whether a learner cannot send anything now: it evaluates, or waits at its staleness bound and has said so."""
    if state.evaluates(record) and record.id not in state.did_not_evaluate:
        return True
    declined = current.declined.get(record.id) == record.step and record.state == LearnerState.TRAINING
    # One that makes steps beyond the bound does not wait.
    return declined and state.staleness(record) == state.options.max_staleness_steps


def _patience_seconds(state: EngineState, current: Round, record: LearnerRecord) -> float:
    """How long a round without a quorum waits for a learner that has a session before it counts as unanswered."""
    options, step = state.options, record.pace.seconds
    usual = 0.0 if record.id in current.declined else state.usual_answer_seconds(record, current.fragment)
    if not record.working or step is None or usual is None:
        return options.startup_seconds
    return min(options.startup_seconds, max(options.lease_seconds, SLOW_STEPS * step, PATIENCE * usual))


def _changed(
    state: EngineState, record: LearnerRecord, now: float, counts: tuple[int, int], reason: str = ""
) -> list[Action]:
    """Set both counts, within their limits. A note tells that the learner no longer counts, or does again."""
    before, paced, counted = (record.unmerged, record.unanswered), record.paces, not record.unanswering
    record.unmerged, record.unanswered = (min(max(0, count), UNANSWERED_LIMIT) for count in counts)
    if reason and counted and before != (record.unmerged, record.unanswered):
        record.unanswered_reason = reason
        record.unanswered_since = now if record.unanswered_since is None else record.unanswered_since
    if counted == record.unanswering:
        state.fewer_left |= counted
        text = f"the quorum does not count it: it {reason}" if counted else "it answers: the quorum counts it again"
        kind = NoteKind.LEARNER_NOT_COUNTED if counted else NoteKind.LEARNER_COUNTED
    elif paced != record.paces:
        text = f"its clock sets no pace: it {reason}" if paced else "it answers: its clock counts again"
        kind = NoteKind.PACE_FOLLOWS
    else:
        return []
    state.roster.place(record)
    return [Note(kind, text, record.id)]
