"""Updates the learners' accounts of time (``time_account``) as rounds end, and reads them.

No decision depends on it: the engine takes the same course whatever the accounts contain.
"""

from collections.abc import Container

from diloco.core.account.time_class import TimeClass
from diloco.core.engine.records import LearnerRecord, Round
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import LearnerState


def frozen(state: EngineState, current: Round) -> None:
    """Account for a round's frozen members: the work of all other learners on the fragment is left out."""
    for record in state.learners.values():
        if record.account.marks:
            record.account.marks[current.fragment].fate = _fate(record, current)


def _fate(record: LearnerRecord, current: Round) -> TimeClass:
    """The class of what a learner has trained on the fragment and not sent, once it has the round's version."""
    if record.id in current.arrived:
        return TimeClass.OVERWRITTEN
    if record.id in current.declined:
        # One step of tolerance: a step may have been reported after the receipt and made before it.
        empty = record.account.step <= record.account.marks[current.fragment].step + 1
        return TimeClass.OVERWRITTEN if empty else TimeClass.LOST
    return TimeClass.LATE if record.working and record.id in current.asked else TimeClass.LOST


def merged(state: EngineState, current: Round, counted: Container[str]) -> None:
    """Account for a merge: the members in ``counted`` are in it; the others' outer gradients could not be merged."""
    for name in current.arrived:
        into = TimeClass.MERGED if name in counted else TimeClass.LOST
        state.learners[name].account.decided(current.fragment, into)


def time_of(state: EngineState, record: LearnerRecord, now: float) -> dict[TimeClass, float]:
    """A learner's allotted time at ``now`` by class, in seconds."""
    # Whose time does not count is withdrawn, or is an absent learner that its elastic pool does without.
    ended = record.left_cleanly or record.state == LearnerState.GIVEN_UP or record.allotted_since is None
    return record.account.split(record.allotted(now), since=_since(state, record), gone=ended and not record.present)


def finished(state: EngineState, now: float) -> None:
    """Close the accounts, as the job is over: no more time counts, and absent learners are not expected back."""
    for record in state.learners.values():
        record.account.close(record.allotted(now), since=_since(state, record), gone=not record.present)
        record.allotted_seconds, record.allotted_since = record.allotted(now), None


def _since(state: EngineState, record: LearnerRecord) -> TimeClass:
    """The class of the time since a learner's last report, until it reports or is gone."""
    if record.state in (LearnerState.TRAINING, LearnerState.QUARANTINED, LearnerState.UNPLANNED):
        return TimeClass.OVERHEAD if state.evaluates(record) else TimeClass.PENDING
    return TimeClass.AWAY
