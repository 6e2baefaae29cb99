"""How many fragments may be in flight, on far links and on thin ones."""

import itertools
from collections.abc import Callable

import pytest

from diloco.core.overlap import REMEMBERED_INTERVALS, FragmentsInFlight


def job(least: int = 2, most: int = 23) -> FragmentsInFlight:
    return FragmentsInFlight(least, most, fragments=24, allowed=least)


def rounds(flight: FragmentsInFlight, count: int, seconds: Callable[[int], float]) -> list[int]:
    """Rounds that each take ``seconds(fragments in flight)``; every launch that is due finds no place."""
    seen = []
    for _ in range(count):
        flight.held_back()
        flight.measured(seconds(flight.allowed))
        seen.append(flight.allowed)
    return seen


def far(allowed: int) -> float:
    """Nine steps there and back, however many are under way."""
    del allowed
    return 9.0


def thin(allowed: int) -> float:
    """One fragment takes 1.6 s and the link takes 1.1 s for each that goes before."""
    return max(1.6, 1.1 * allowed)


def test_on_a_far_link_as_many_are_let_in_as_the_way_needs() -> None:
    flight = job()
    flight.measured(9.0)
    for _ in range(100):
        if flight.allowed < 9:  # nine in flight keep the schedule: no launch has to wait any more
            flight.held_back()
        flight.measured(9.0)
    assert flight.allowed == 9


def test_on_a_thin_link_no_more_are_let_in_than_it_carries() -> None:
    flight = job()
    flight.measured(1.6)
    assert max(rounds(flight, 150, thin)) <= 3
    assert flight.allowed == 2


def test_one_too_many_is_not_tried_again_until_the_link_is_measured_anew() -> None:
    flight = job()
    flight.measured(1.6)
    seen = rounds(flight, REMEMBERED_INTERVALS * 24 - 2, thin)
    assert sum(later > earlier for earlier, later in itertools.pairwise(seen)) <= 1


def test_a_link_that_became_far_is_measured_anew() -> None:
    flight = job()
    rounds(flight, 20, lambda _: 1.0)
    rounds(flight, REMEMBERED_INTERVALS * 24, far)  # taken for a queue until then
    rounds(flight, 60, far)
    assert flight.allowed > 4


def test_none_is_let_in_that_nobody_waits_for() -> None:
    flight = job()
    for _ in range(50):
        flight.measured(9.0)
    assert flight.allowed == 2


def test_a_job_that_fixes_the_overlap_keeps_it() -> None:
    assert set(rounds(job(least=2, most=2), 50, far)) == {2}


def test_never_more_than_the_staleness_bound_allows() -> None:
    assert max(rounds(job(most=4), 180, far)) == 4


@pytest.mark.parametrize("nonsense", [-1.0, 0.0, float("nan"), float("inf")])
def test_nonsense_is_left_out(nonsense: float) -> None:
    flight = job()
    flight.measured(nonsense)
    assert flight.shortest_seconds is None


def test_a_step_more_or_less_is_no_queue() -> None:
    flight = job()
    times = itertools.cycle([1.6, 2.0])
    for _ in range(40):
        if flight.allowed < 3:
            flight.held_back()
        flight.measured(next(times), step_seconds=0.5)
    assert flight.allowed == 3


def test_a_queue_of_more_than_a_step_lets_no_more_in() -> None:
    flight = job()
    flight.measured(1.6, step_seconds=0.5)
    for _ in range(150):
        flight.held_back()
        flight.measured(1.1 * flight.allowed + 0.5, step_seconds=0.5)
    assert flight.allowed <= 3


def test_a_large_fragment_that_takes_long_is_no_queue() -> None:
    flight = job()
    for number in range(REMEMBERED_INTERVALS * 24 - 1):
        if flight.allowed < 5:
            flight.held_back()
        large = number % 24 == 7
        flight.measured(7.0 if large else 1.0, 7.0 if large else 17 / 23, step_seconds=0.5)
    assert flight.allowed == 5
