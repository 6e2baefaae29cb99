"""What is said of learners that the syncer has lost, and of those that have joined it again. Pure."""

from diloco.spec.status.engine import OVER, LearnerState
from diloco.spec.words import shortlist
from diloco_operator.decide.observed import Sessions, SyncerAway, SyncerStatusView
from diloco_operator.decide.plan import JobEvent
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.conditions import event


def session_events(
    told: Sessions | None, view: SyncerStatusView | SyncerAway | None, wanted: frozenset[str]
) -> tuple[JobEvent, ...]:
    """One event about all learners that were lost since ``told``, and one about those that are back.

    ``wanted``: ids of the learners that the manifest asks for. A restart of the syncer ends every session: of that,
    the condition Ready speaks.
    """
    if told is None or not isinstance(view, SyncerStatusView) or view.epoch != told.epoch or view.phase in OVER:
        return ()
    now = Sessions.of(view).incarnations
    lost = [
        one.id
        for one in view.learners
        if told.incarnations.get(one.id, 0) > 0 > now[one.id] and one.state == LearnerState.ABSENT and not one.left
    ]
    back = [one for one, number in now.items() if number > abs(told.incarnations.get(one, 0)) > 0]
    events = (
        (Reason.LEARNERS_LOST, sorted(wanted.intersection(lost)), "lost their session with the syncer"),
        (Reason.LEARNERS_BACK, sorted(wanted.intersection(back)), "joined the syncer again"),
    )
    return tuple(
        event(reason, f"{len(who)} learner(s) {what}: {shortlist(who)}") for reason, who, what in events if who
    )
