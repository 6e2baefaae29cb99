"""Which learners are asked again without a quorum, which ones a round still waits for, and what ends its wait."""

import pytest

from diloco.core.engine.actions import Action, AskFragment, Merge, SetTimer
from diloco.core.engine.events import Event, LearnersPlanned, StepReported, TimerFired
from tests.support.engine_script import POOL, Script, members, name, of, only, stepped


def without_work(script: Script, *indices: int) -> None:
    """Processes that lost their connection are back, have received the first fragment again, and decline it."""
    for index in indices:
        script.rejoin(index, f"process-{index}", (-1, 0, 0, 0))
        script.decline(index, 0)


def asked(actions: list[Action]) -> list[tuple[str, int]]:
    return [(ask.learner, ask.attempt) for ask in of(actions, AskFragment) if ask.fragment == 0]


def fire(script: Script) -> list[Action]:
    """The first round's timer fires when it is due, and no other."""
    script.now = script.timers.pop("round/0")
    return script.do(TimerFired("round/0"))


def test_only_those_that_are_in_and_have_not_answered_are_asked_again() -> None:
    script = stepped(4, quorum=4)
    script.push(0, 0)
    without_work(script, 1)
    script.leave(3)
    actions = fire(script)
    assert asked(actions) == [(name(2), 2)]
    assert {ask.reason for ask in of(actions, AskFragment)} == {"no quorum after 10.0 s; the request is repeated"}


def test_when_all_have_answered_those_with_nothing_are_asked_again() -> None:
    script = stepped(4, quorum=4)
    script.push(0, 0)
    script.leave(0)
    script.push(1, 0)
    without_work(script, 2)
    script.leave(3)
    assert asked(fire(script)) == [(name(2), 2)]


def test_whoever_declined_and_is_asked_again_is_waited_for() -> None:
    script = stepped(3, quorum=2, overlap=50)
    without_work(script, 1, 2)
    script.push(0, 0)
    assert asked(fire(script)) == [(name(1), 2), (name(2), 2)]
    script.step(1)
    assert not of(script.push(1, 0), Merge)
    script.step(2)
    assert members(script.push(2, 0)) == [[name(0), name(1), name(2)]]


def test_what_a_process_declined_does_not_stand_for_the_one_after_it() -> None:
    script = stepped(2)
    script.decline(1, 0)
    script.rejoin(1, "another")
    assert not of(script.push(0, 0), Merge)
    script.step(1)
    assert members(script.push(1, 0)) == [[name(0), name(1)]]


def test_a_timer_that_fires_too_early_is_set_again() -> None:
    script = stepped(2)
    waits = only(script.push(0, 0), SetTimer)
    script.now = waits.at - 1e-3
    assert script.do(TimerFired(waits.name)) == [waits]


@pytest.mark.parametrize("what", ["a step", "a plan"])
def test_only_its_timer_ends_a_wait_that_is_overdue(what: str) -> None:
    script = stepped(3)
    script.push(0, 0)
    assert "round/0" in script.timers
    script.now = script.timers["round/0"] + 1.0
    step = StepReported(name(0), script.incarnations[0], 2, 200, 1.0, 2.0, 2)
    event: Event = step if what == "a step" else LearnersPlanned(tuple(map(name, range(4))), (POOL,))
    assert not of(script.do(event), Merge)
    assert len(of(script.do(TimerFired("round/0")), Merge)) == 1


def test_asks_are_repeated_at_the_latest_after_1024_times_as_long() -> None:
    script = stepped(2, quorum=2)
    gaps = []
    for _ in range(13):
        fire(script)
        gaps.append(script.timers["round/0"] - script.now)
    assert gaps == [10.0 * 2 ** min(attempt, 10) for attempt in range(1, 14)]
