"""What those with one certificate, or with two, can take of a job at most, and that an honest job loses nothing.

A certificate is for a pool. `SECURITY.md` has the figures, of jobs of twice as many steps.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.support.liars import Course, Ended, Lies, job, play

STEPS = 200
P0 = tuple(f"here/p0/{index}" for index in range(8))
FAST = Lies(times=1000.0, every_seconds=0.05, step_seconds=0.0, pushes="bound")
"""As fast as the checks let it say, and with all that a push may claim."""
FIRST = Course(liars_at=0.0, starts=lambda _: 5.0)
"""The liars are there from the first second, and the others need 5 s to start."""
HONEST = Course(liars=())


@cache
def honest(*pools: int) -> Ended:
    return play(job(STEPS, *pools), None, HONEST)


@pytest.mark.parametrize(
    ("pools", "lies", "course", "lasts", "weight"),
    [
        pytest.param((4,), FAST, FIRST, 0.95, 0.4, id="the first second"),
        pytest.param((4,), FAST, Course(liars=(P0[3], "here/p0/99")), 0.95, 0.33, id="an unplanned id"),
        pytest.param(
            *((4,), Lies(), Course(liars=(P0[3], *(f"here/p0/{index}" for index in range(90, 154)))), 0.95, 0.33),
            id="64 unplanned ids that say the truth",
        ),
        pytest.param((1, 1, 1, 1), Lies(times=25.0), Course(), 0.75, 0.52, id="alone in its pool"),
        pytest.param((1, 1, 1, 1), FAST, Course(), 0.75, 0.52, id="alone in its pool, faster"),
        pytest.param((4,), FAST, Course(restarts_at=30.0), 0.95, 0.4, id="a restart of the syncer"),
    ],
)
def test_one_certificate_does_not_take_the_job(
    pools: tuple[int, ...], lies: Lies, course: Course, lasts: float, weight: float
) -> None:
    found = play(job(STEPS, *pools), lies, course)
    assert found.seconds >= lasts * honest(*pools).seconds
    assert found.weight <= weight
    assert found.credited >= 0.99, "the others lose nothing"
    assert sum(found.merged.values()) == pytest.approx(found.merged_tokens)


@pytest.mark.parametrize(
    ("pools", "lies", "course", "lasts", "weight"),
    [
        pytest.param((8,), Lies(times=3.0), Course(liars=P0[6:]), 0.75, 0.52, id="two of 8"),
        pytest.param((8,), FAST, Course(liars=P0[6:]), 0.75, 0.52, id="two of 8, faster"),
        pytest.param((8,), FAST, replace(FIRST, liars=P0[6:]), 0.75, 0.52, id="two of 8, the first second"),
        pytest.param((4,), Lies(times=3.0), Course(liars=P0[2:4]), 0.55, 0.8, id="two of 4"),
        pytest.param((4,), FAST, replace(FIRST, liars=P0[2:4]), 0.55, 0.92, id="two of 4, the first second"),
        pytest.param(
            (1, 1, 1, 1), Lies(times=25.0), Course(liars=("here/p2/0", "here/p3/0")), 0.3, 0.92, id="two of 4 pools"
        ),
    ],
)
def test_what_two_take_is_bounded(
    pools: tuple[int, ...], lies: Lies, course: Course, lasts: float, weight: float
) -> None:
    found = play(job(STEPS, *pools), lies, course)
    assert found.seconds >= lasts * honest(*pools).seconds
    assert found.weight <= weight
    assert found.credited >= 0.99, "the others lose nothing"


def test_a_pool_whose_learners_lie_together_is_bounded_by_its_given_speed() -> None:
    course = Course(liars=("here/p1/0", "here/p1/1"))
    found = play(job(STEPS, 6, 2, speed=(1, 1)), FAST, course)
    assert found.seconds >= 0.75 * honest(8).seconds
    assert found.weight <= 0.55


@pytest.mark.parametrize(
    ("pools", "speed"),
    [((2, 2), None), ((1, 1), (8, 1)), ((1, 2, 1), (8, 1, 1))],
    ids=["pairs", "given", "three pools"],
)
def test_pools_that_differ_eightfold_lose_nothing(pools: tuple[int, ...], speed: tuple[int, ...] | None) -> None:
    course = replace(HONEST, times=lambda learner: 8.0 if "/p0/" in learner else 1.0)
    of_pools: dict[str, Any] = {} if speed is None else {"speed": speed}
    found = play(job(STEPS, *pools, **of_pools), None, course)
    assert found.credited >= 0.99
    assert found.seconds <= 0.6 * honest(*pools).seconds


@pytest.mark.parametrize("late", [30.0, 700.0])
def test_one_that_joins_late_costs_nothing_but_its_absence(late: float) -> None:
    course = replace(HONEST, starts=lambda learner: late if learner == P0[3] else 0.0)
    found = play(job(STEPS, 4), None, course)
    assert found.credited >= 0.99
    assert found.seconds <= 1.4 * honest(4).seconds


def test_of_two_the_first_works_for_the_budget_before_the_other_is_there() -> None:
    course = replace(HONEST, starts=lambda learner: 60.0 * int(learner[-1]))
    found = play(job(STEPS, 2), None, course)
    assert found.credited >= 0.99
    assert found.seconds <= honest(2).seconds + 31.0


def test_elastic_pools_and_pools_that_grow_lose_nothing() -> None:
    some = replace(HONEST, starts=lambda learner: 20.0 * int(learner[-1]))
    elastic = play(job(STEPS, 4, minimumLearners=(1,)), None, some)
    assert elastic.credited >= 0.99
    assert elastic.seconds <= honest(4).seconds + 32.0
    grows = replace(
        HONEST,
        honest=P0[2:4],
        starts=lambda learner: 0.0 if learner in P0[:2] else 10.0,
        plans=((20.0, P0[:4]),),
    )
    grown = play(job(STEPS, 2), None, grows)
    assert grown.seconds <= 0.65 * honest(2).seconds
    assert all(grown.merged[one] > 0 for one in P0[:4])


def test_a_restart_of_the_syncer_costs_honest_learners_no_work() -> None:
    course = replace(HONEST, restarts_at=30.0, honest_are_away=10.0)
    found = play(job(STEPS, 4), None, course)
    assert found.credited >= 0.97
    assert found.seconds <= honest(4).seconds + 11.0
