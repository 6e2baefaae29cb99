from dataclasses import replace
from types import SimpleNamespace

import pytest

from diloco.local.chaos.session import Session
from diloco.local.chaos.spec import ChaosError, Fault, FaultKind
from diloco.spec.status.engine import LearnerStatus, RecoveriesStatus, RecoveryStatus
from diloco.spec.status.syncer import SyncerStatus
from tests.support.hand_clock import HandClock
from tests.support.scripted_place import VICTIM, ScriptedPlace
from tests.support.status_of_a_job import STATUS, learner_status

KILL = Fault(FaultKind.KILL, VICTIM, (VICTIM,))
CUT = Fault(FaultKind.CUT, "a", ("a",), seconds=0.1)


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


def training(_: int) -> SyncerStatus:
    return told("Training", 1, 1.0, recovered=False)


def session_on(place: ScriptedPlace) -> Session:
    return Session(place, (VICTIM,), lambda _: None)


def test_a_session_ends_once_its_victim_has_recovered() -> None:
    place = ScriptedPlace(lambda asked: told("Training", 1 + bool(asked), 10.0 + asked, recovered=asked > 1))
    lines: list[str] = []
    session = Session(place, (VICTIM,), lines.append)
    session.run([KILL], seconds=0.5, settle_seconds=1e6)
    assert place.hits == [KILL]
    assert place.healed == 1
    assert lines == [f"kill {VICTIM}"]
    (found,) = session.effects
    assert (found.recovered, found.lost) == (1, 1)
    assert found.recovery_seconds is not None


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
    session = session_on(place)
    session.run([replace(KILL, at_seconds=0.1)], seconds=0.5, settle_seconds=1e6)
    assert place.asked == 3
    (found,) = session.effects
    assert (found.recovered, found.lost) == (1, 1)


def test_a_cut_that_ended_no_session_is_not_waited_for() -> None:
    place = ScriptedPlace(lambda asked: told("Training", 1, 10.0 + asked, recovered=False))
    session = session_on(place)
    session.run([CUT], seconds=1.5, settle_seconds=1e6)
    (found,) = session.effects
    assert (found.recovered, found.lost) == (0, 1)


def test_a_cut_that_ended_no_session_has_no_part_in_a_later_loss() -> None:
    def then(asked: int) -> SyncerStatus:
        return told("Training", 1 + (asked > 6), 10.0 + asked, recovered=asked > 6)

    session = session_on(ScriptedPlace(then))
    session.run([CUT, replace(KILL, at_seconds=5.0)], seconds=6.0, settle_seconds=1e6)
    cut, kill = session.effects
    assert (cut.recovered, cut.lost) == (0, 1)
    assert (kill.recovered, kill.lost) == (1, 1)


def test_a_cut_whose_learner_is_killed_after_it_is_waited_for_as_that_is() -> None:
    def then(asked: int) -> SyncerStatus:
        return told("Training", 1 + (asked > 2), 10.0 + asked, recovered=asked > 4)

    place = ScriptedPlace(then)
    session = session_on(place)
    session.run([CUT, replace(KILL, at_seconds=1.5)], seconds=2.0, settle_seconds=1e6)
    cut, kill = session.effects
    assert (kill.recovered, kill.lost) == (1, 1)
    assert cut.lost == 1


def test_an_interrupt_heals_and_the_fault_is_not_forgotten() -> None:
    place = ScriptedPlace(training, interrupts=True)
    session = session_on(place)
    with pytest.raises(KeyboardInterrupt):
        session.run([KILL], seconds=100.0, settle_seconds=0.0)
    assert place.healed == 1
    (found,) = [one.fault for one in session.effects]
    assert (found.victims, found.refused) == ((VICTIM,), "the answer is not known")


def test_a_place_that_goes_ends_the_session_and_what_was_injected_stays() -> None:
    place = ScriptedPlace(training, gone_after=1)
    session = session_on(place)
    # Two are due at once: the second one is not tried.
    with pytest.raises(ChaosError, match="the place is gone"):
        session.run([KILL, replace(KILL, at_seconds=0.001)], seconds=100.0, settle_seconds=1e6)
    assert place.healed == 1
    assert place.hits == [KILL]
    (found,) = [one.fault for one in session.effects]
    assert (found.victims, found.refused) == ((VICTIM,), "")


def test_a_place_that_goes_with_the_last_order_is_told_too() -> None:
    with pytest.raises(ChaosError, match="the place is gone"):
        session_on(ScriptedPlace(training, gone_after=1)).run([KILL], seconds=0.1, settle_seconds=0.0)


def test_a_job_that_ends_ends_the_session_which_says_what_is_left() -> None:
    place = ScriptedPlace(training, over_after=1)
    lines: list[str] = []
    orders = [KILL, replace(KILL, at_seconds=50.0), replace(KILL, at_seconds=60.0)]
    Session(place, (VICTIM,), lines.append).run(orders, seconds=100.0, settle_seconds=1e6)
    assert place.hits == [KILL]
    assert lines[1:] == ["the job has ended, or its run was stopped; 2 fault(s) were not injected"]


def test_a_session_that_was_kept_from_running_leaves_no_fault_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    stopped = SimpleNamespace(monotonic=clock, sleep=lambda _: setattr(clock, "now", clock.now + 100.0))
    monkeypatch.setattr("diloco.local.chaos.session.time", stopped)
    place = ScriptedPlace(training)
    orders = [KILL, replace(KILL, at_seconds=50.0)]
    session_on(place).run(orders, seconds=60.0, settle_seconds=0.0)
    assert place.hits == orders


def test_an_order_for_nobody_who_is_there_leaves_no_record() -> None:
    place = ScriptedPlace(training)
    nobody = Fault(FaultKind.KILL, "a/c/0", (), rate_per_hour=1.0)
    lines: list[str] = []
    session = Session(place, (VICTIM,), lines.append)
    session.run([nobody, replace(KILL, at_seconds=50.0)], seconds=0.3, settle_seconds=1e6)
    assert place.hits == [nobody], "and none after the end"
    assert (session.effects, lines) == ([], [])
