"""Updates the learners' accounts of time (``time_account``) as rounds end, and reads them.

No decision depends on it: the engine takes the same course whatever the accounts contain.
"""

from collections.abc import Container

from diloco.core.account.time_class import TimeClass
from diloco.core.engine.events import FragmentArrived
from diloco.core.engine.records import LearnerRecord, Round
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import LearnerState


def dropped(state: EngineState, record: LearnerRecord, event: FragmentArrived) -> None:
    """Account for a dropped outer gradient. One that is merely late is accounted for when the members are frozen."""
    lag = event.version - 1 - event.base_version
    if lag > state.options.max_version_lag:
        record.account.left_out(event.fragment, event.version, TimeClass.LATE)


def frozen(state: EngineState, current: Round) -> None:
    """Account for a round's frozen members: the work of all other learners on the fragment is left out."""
    for record in state.learners.values():
        if record.id in current.arrived or not record.account.marks:
            continue
        asked = record.working and record.id in current.asked
        record.account.left_out(current.fragment, current.version, TimeClass.LATE if asked else TimeClass.LOST)


def merged(state: EngineState, current: Round, counted: Container[str]) -> None:
    """Account for a merge: the members in ``counted`` are in it; the others' outer gradients could not be merged."""
    for name in current.arrived:
        into = TimeClass.MERGED if name in counted else TimeClass.UNUSABLE
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
    if record.state == LearnerState.LOADING:
        return TimeClass.AWAY if record.account.again else TimeClass.LOADING
    return TimeClass.UNEXPLAINED if record.state == LearnerState.STALLED else TimeClass.AWAY
