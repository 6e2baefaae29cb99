"""A session of faults: orders in time, an end that leaves nothing behind, and what it has seen."""

from dataclasses import replace

import pytest

from diloco.local.chaos.orders import Order
from diloco.local.chaos.session import Session
from diloco.local.chaos.spec import ChaosError, FaultKind
from diloco.local.report.chaos_report import effects
from diloco.spec.syncer_status import LearnerStatus, RecoveriesStatus, RecoveryStatus, SyncerStatus
from tests.support.scripted_place import VICTIM, ScriptedPlace
from tests.support.status_of_a_job import STATUS, learner_status

KILL = Order(0.0, FaultKind.KILL, VICTIM, (VICTIM,))
CUT = Order(0.0, FaultKind.CUT, "a", ("a",), 0.1)


def told(state: str, incarnation: int, elapsed: float, recovered: bool) -> SyncerStatus:  # a row
    learner: LearnerStatus = learner_status(0).model_copy(update={"state": state, "incarnation": incarnation})
    one = RecoveryStatus(
        learner=VICTIM, restarted=True, lost_seconds=elapsed, down=0.1, loading=0.1, stepping=0.1, merging=0.1
    )
    return STATUS.model_copy(
        update={
            "learners": (learner,),
            "elapsed_seconds": elapsed,
            "recoveries": RecoveriesStatus(count=1, latest=(one,) if recovered else ()),
            "time_seconds": {"merged": elapsed, "late": elapsed},
        }
    )


def test_a_session_ends_once_its_victim_has_recovered() -> None:
    place = ScriptedPlace(lambda asked: told("Training", 1 + bool(asked), 10.0 + asked, recovered=asked > 1))
    lines: list[str] = []
    session = Session(place, (VICTIM,), lines.append)
    session.run([KILL], seconds=0.5, settle_seconds=1e6)
    assert place.hits == [KILL]
    assert place.healed == 1
    assert lines == [f"kill {VICTIM}"]
    (found,) = effects(session.injected, session.observed)
    assert (found.recovered, found.lost) == (1, 1)
    assert session.observed.samples[0].allotted_seconds == 20.0


@pytest.mark.parametrize("epoch", [1, 2], ids=["the same syncer", "a syncer that was started since"])
def test_a_victim_of_whom_the_syncer_tells_nothing_is_back_once_merged(epoch: int) -> None:
    # One that was lost before the syncer started is new to it.
    incarnation = {1: 2, 2: 1}[epoch]

    def then(asked: int) -> SyncerStatus:
        if not asked:
            return told("Training", 1, 10.0, recovered=False).model_copy(update={"epoch": 1})
        now = told("Training", incarnation, 10.0 + asked, recovered=False)
        tokens = 50.0 if asked < 3 else 60.0
        learners = tuple(one.model_copy(update={"merged_tokens": tokens}) for one in now.learners)
        return now.model_copy(update={"learners": learners, "epoch": epoch})

    place = ScriptedPlace(then)
    session = Session(place, (VICTIM,), lambda _: None)
    session.run([replace(KILL, at_seconds=0.1)], seconds=0.5, settle_seconds=1e6)
    assert place.asked == 3
    (found,) = effects(session.injected, session.observed)
    assert (found.recovered, found.lost) == (1, 1)


def test_a_cut_that_ended_no_session_is_not_waited_for() -> None:
    place = ScriptedPlace(lambda asked: told("Training", 1, 10.0 + asked, recovered=False))
    session = Session(place, (VICTIM,), lambda _: None)
    session.run([CUT], seconds=1.5, settle_seconds=1e6)
    (found,) = effects(session.injected, session.observed)
    assert (found.recovered, found.lost) == (0, 1)


def test_a_cut_whose_learner_is_killed_after_it_is_waited_for_as_that_is() -> None:
    def then(asked: int) -> SyncerStatus:
        return told("Training", 1 + (asked > 2), 10.0 + asked, recovered=asked > 4)

    place = ScriptedPlace(then)
    session = Session(place, (VICTIM,), lambda _: None)
    session.run([CUT, replace(KILL, at_seconds=1.5)], seconds=2.0, settle_seconds=1e6)
    cut, kill = effects(session.injected, session.observed)
    assert (kill.recovered, kill.lost) == (1, 1)
    assert cut.lost == 1


def test_an_interrupt_heals_and_the_fault_is_not_forgotten() -> None:
    place = ScriptedPlace(lambda _: told("Training", 1, 1.0, recovered=False), interrupts=True)
    session = Session(place, (VICTIM,), lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        session.run([KILL], seconds=100.0, settle_seconds=0.0)
    assert place.healed == 1
    (found,) = session.injected
    assert (found.victims, found.refused) == ((VICTIM,), "the answer is not known")


def test_orders_after_the_end_are_not_given() -> None:
    place = ScriptedPlace(lambda _: told("Training", 1, 1.0, recovered=False))
    Session(place, (VICTIM,), lambda _: None).run(
        [Order(50.0, FaultKind.KILL, VICTIM, (VICTIM,))], seconds=0.3, settle_seconds=0.0
    )
    assert place.hits == []


def test_a_place_that_goes_ends_the_session_and_what_was_injected_stays() -> None:
    place = ScriptedPlace(lambda _: told("Training", 1, 1.0, recovered=False), gone_after=1)
    session = Session(place, (VICTIM,), lambda _: None)
    # Two are due at once: the second one is not tried.
    with pytest.raises(ChaosError, match="the place is gone"):
        session.run([KILL, replace(KILL, at_seconds=0.001)], seconds=100.0, settle_seconds=1e6)
    assert place.healed == 1
    assert place.hits == [KILL]
    (found,) = session.injected
    assert (found.victims, found.refused) == ((VICTIM,), "")


def test_a_place_that_goes_with_the_last_order_is_told_too() -> None:
    place = ScriptedPlace(lambda _: told("Training", 1, 1.0, recovered=False), gone_after=1)
    with pytest.raises(ChaosError, match="the place is gone"):
        Session(place, (VICTIM,), lambda _: None).run([KILL], seconds=0.1, settle_seconds=0.0)


def test_a_job_that_ends_ends_the_session_which_says_what_is_left() -> None:
    place = ScriptedPlace(lambda _: told("Training", 1, 1.0, recovered=False), over_after=1)
    lines: list[str] = []
    orders = [KILL, replace(KILL, at_seconds=50.0), replace(KILL, at_seconds=60.0)]
    Session(place, (VICTIM,), lines.append).run(orders, seconds=100.0, settle_seconds=1e6)
    assert place.hits == [KILL]
    assert lines[1:] == ["the job has ended, or its run was stopped; 2 fault(s) were not injected"]


def test_an_order_for_nobody_who_is_there_leaves_no_record() -> None:
    place = ScriptedPlace(lambda _: told("Training", 1, 1.0, recovered=False))
    nobody = Order(0.0, FaultKind.KILL, "a/c/0", (), by_rate=True)
    lines: list[str] = []
    session = Session(place, (VICTIM,), lines.append)
    session.run([nobody], seconds=0.3, settle_seconds=1e6)
    assert place.hits == [nobody]
    assert (list(session.injected), lines) == ([], [])
