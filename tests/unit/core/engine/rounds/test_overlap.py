"""How many fragments may be in flight, on far links and on thin ones."""

from collections.abc import Callable

import pytest

from diloco.core.engine.rounds.overlap import REMEMBERED_INTERVALS, FragmentsInFlight


def job(least: int = 2, most: int = 23) -> FragmentsInFlight:
    return FragmentsInFlight(least, most, fragments=24, allowed=least)


def rounds(flight: FragmentsInFlight, count: int, seconds: Callable[[int], float]) -> list[int]:
    """Rounds that each take ``seconds(fragments in flight)``; every launch that is due has to wait."""
    seen = []
    for _ in range(count):
        flight.held_back()
        flight.measured(seconds(flight.allowed))
        seen.append(flight.allowed)
    return seen


def far(allowed: int) -> float:
    """Nine steps for a round trip, however many fragments are in flight."""
    del allowed
    return 9.0


def thin(allowed: int) -> float:
    """One fragment takes 1.6 s, and the link 1.1 s for each one before it."""
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


def test_none_is_let_in_that_nobody_waits_for() -> None:
    flight = job()
    for _ in range(50):
        flight.measured(9.0)
    assert flight.allowed == 2


def test_a_job_that_fixes_the_overlap_keeps_it() -> None:
    flight = job(least=2, most=2)
    assert set(rounds(flight, 50, far)) == {2}
    assert flight.shortest_seconds is None  # nothing follows from it, so nothing is measured


def test_never_more_than_the_staleness_bound_allows() -> None:
    assert max(rounds(job(most=4), 180, far)) == 4


@pytest.mark.parametrize("nonsense", [-1.0, 0.0, float("nan"), float("inf")])
def test_nonsense_is_left_out(nonsense: float) -> None:
    flight = job()
    flight.measured(nonsense)
    assert flight.shortest_seconds is None


def test_a_large_fragment_that_takes_long_is_no_queue() -> None:
    flight = job()
    for number in range(REMEMBERED_INTERVALS * 24 - 1):
        if flight.allowed < 5:
            flight.held_back()
        large = number % 24 == 7
        flight.measured(7.0 if large else 1.0, 7.0 if large else 17 / 23, step_seconds=0.5)
    assert flight.allowed == 5


def test_one_more_is_let_in_when_two_rounds_of_each_were_measured_and_one() -> None:
    assert rounds(job(), 21, far) == [2] * 4 + [3] * 7 + [4] * 9 + [5]


def test_after_eight_intervals_the_number_goes_back_to_its_least() -> None:
    flight = FragmentsInFlight(2, 9, fragments=2, allowed=2)
    sixteen, seventeen = [2] * 4 + [3] * 7 + [4] * 5, [2] * 5 + [3] * 7 + [4] * 5
    assert rounds(flight, 51, far) == sixteen + seventeen + seventeen + [2]


@pytest.mark.parametrize(
    ("least", "shortest", "step_seconds", "allowed"),
    [
        (1, 15.0, 0.0, 5),  # a quarter of a fragment queues
        (1, 14.0, 0.0, 4),  # half of one
        (1, 13.0, 0.0, 3),  # three quarters
        (1, 8.0, 0.0, 3),  # two
        (4, 13.0, 0.0, 4),  # never fewer than the least
        (1, 10.0, 5.0, 5),  # up to a step of the difference is no queue
        (1, 10.0, 3.0, 3),
    ],
)
def test_of_four_in_flight_it_counts_how_many_queue(
    least: int, shortest: float, step_seconds: float, allowed: int
) -> None:
    flight = FragmentsInFlight(least, 9, fragments=24, allowed=4)
    for seconds in (shortest, *[16.0] * 8):
        flight.held_back()
        flight.measured(seconds, step_seconds=step_seconds)
    assert flight.allowed == allowed


def test_after_a_queue_none_is_let_in_until_the_link_is_measured_anew() -> None:
    flight = FragmentsInFlight(2, 9, fragments=24, allowed=4)
    rounds(flight, 8, lambda _: 8.0)
    assert rounds(flight, 1, lambda _: 16.0) == [3]
    assert set(rounds(flight, REMEMBERED_INTERVALS * 24 - 9, lambda _: 8.0)) == {3}
    assert rounds(flight, 6, lambda _: 8.0) == [2] * 5 + [3]


@pytest.mark.parametrize(
    ("measured", "shortest"),
    [
        ([(6.0, 1.5625)], None),  # a large fragment
        ([(6.0, 1.5)], 6.0),
        ([(6.0, 2.0), (5.0, 1.5)], 4.0),  # a size more takes 2 s more
        ([(6.0, 2.0), (3.0, 0.5)], 4.0),
        ([(37.0, 10.0), (3.0, 1.5)], 1.5),  # 4 s more: no less than half of what it took
        ([(6.0, 1.0), (7.0, 1.0)], 6.0),
    ],
)
def test_the_shortest_time_is_that_of_a_fragment_of_mean_size(
    measured: list[tuple[float, float]], shortest: float | None
) -> None:
    flight = job()
    for seconds, size in measured:
        flight.measured(seconds, size)
    assert flight.shortest_seconds == (None if shortest is None else pytest.approx(shortest))
