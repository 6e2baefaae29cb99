"""Elastic pools: learners that do not come, or go, cost nothing while the pool has its minimum."""

from collections.abc import Callable
from typing import Any

import pytest

from diloco.core.account.time_class import TimeClass
from diloco.core.engine.actions import Note
from diloco.core.engine.events import LearnersPlanned, PoolMinimum
from tests.support.engine_script import POOL, Script, name, only, options


def elastic(minimum: int, learners: int = 5, **changes: Any) -> Script:
    return Script(options(learners, pool_minimums=(PoolMinimum(POOL, minimum),), **changes))


def plan(script: Script, learners: int, *minimum: int) -> None:
    script.do(
        LearnersPlanned(tuple(map(name, range(learners))), (POOL,), tuple(PoolMinimum(POOL, one) for one in minimum))
    )


def given(script: Script, *indices: int) -> list[float]:
    by_id = {learner.id: learner.allotted_seconds for learner in script.view.learners}
    return [by_id[name(index)] for index in indices]


def play(script: Script, course: str) -> None:
    """Steps: whose session begins or ends, how many are planned (and at least how many), and who was given how much."""
    for step in course.split("; "):
        what, *words = step.split()
        numbers = [int(word) for word in words if "=" not in word]
        match what:
            case "start":
                script.start(*numbers)
            case "wait":
                script.wait(float(numbers[0]))
            case "vanish":
                script.leave(numbers[0])
            case "join":
                script.join(numbers[0], f"on another node at {script.now}")
            case "plan":
                plan(script, *numbers)
            case _:
                assert what == "given"
                told = {int(index): float(seconds) for index, seconds in (word.split("=") for word in words)}
                assert given(script, *told) == list(told.values())


COURSES: dict[str, tuple[Callable[[], Script], str]] = {
    "learners that never came cost nothing and are shown": (
        lambda: elastic(2),
        "start 1 4; wait 3; given 0=0 1=3 2=0 3=0 4=3",
    ),
    "one that the pool can do without is not counted when it vanishes": (
        lambda: elastic(2),
        "start 0 1 2; wait 3; vanish 1; wait 4; given 0=7 1=3 2=7; join 1; wait 1; given 0=8 1=4 2=8",
    ),
    "below the minimum the one that left last counts as away, until another one comes": (
        lambda: elastic(2),
        "start 0 1 2; vanish 0; wait 1; vanish 2; wait 2; given 0=0 1=3 2=3; start 4; wait 5; given 0=0 1=8 2=3 4=5",
    ),
    "an unplanned learner that leaves passes its place on": (
        lambda: elastic(2),
        "start 0 1 4; vanish 0; plan 3 2; wait 1; given 0=0 1=1 4=1; vanish 4; wait 1; given 0=1 1=2",
    ),
    "one that was given up counts only below the minimum": (
        lambda: elastic(2, 3, max_restarts=0),
        "start 0 1 2; vanish 0; join 0; wait 2; given 0=0 1=2 2=2; vanish 1; wait 3; given 0=0 1=5 2=5",
    ),
    "of a fixed pool, one that is planned again counts from then on although it is away": (
        lambda: Script(options(2)),
        "start 0 1; wait 2; plan 1; vanish 1; wait 4; plan 2; wait 1; given 0=7 1=3",
    ),
}


@pytest.mark.parametrize("course", COURSES)
def test_learners_are_given_time_while_they_count(course: str) -> None:
    begin, steps = COURSES[course]
    play(begin(), steps)


def test_one_that_falls_silent_counts_until_its_lease_ends_and_no_longer() -> None:
    script = elastic(1, 2)
    script.start(0, 1)
    script.step(1)
    for _ in range(30):
        script.step(0)
        script.wait(1.0)
    assert given(script, 0, 1) == [30.0, 10.0]


def test_what_a_vanished_learner_had_not_sent_is_lost_and_not_pending() -> None:
    script = elastic(1, 2)
    script.start(0, 1)
    script.wait(4.0)
    script.step(1, count=2)
    script.leave(1)
    (gone,) = [one for one in script.view.learners if one.id == name(1)]
    assert gone.time_seconds[TimeClass.LOST] == 2.0
    assert gone.time_seconds[TimeClass.PENDING] == 0.0


def test_a_plan_says_how_many_more_and_how_many_at_least() -> None:
    note = only(elastic(1, 3).do(LearnersPlanned(tuple(map(name, range(3))), (POOL,), (PoolMinimum(POOL, 2),))), Note)
    assert note.reason == "3 learner(s) are planned: 0 more, 0 fewer than before; at least 2 of here/pool"


def test_after_a_restart_of_the_syncer_only_the_minimum_is_awaited() -> None:
    script = elastic(2, 4)
    script.start(0, 1, 2, 3)
    script.wait(1.0)
    again = script.restarted()
    again.wait(5.0)
    assert given(again, 0, 1, 2, 3) == [1.0, 1.0, 1.0, 1.0]
    again.join(3, "after the syncer")
    again.wait(2.0)
    assert sorted(given(again, 0, 1, 2, 3)) == [1.0, 1.0, 3.0, 3.0]
    again.join(2, "after it")
    again.wait(1.0)
    assert sum(given(again, 0, 1, 2, 3)) == 10.0
