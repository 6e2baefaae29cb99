"""Back-off, deadlines, the account of wall time, acted-out speed: arithmetic on time, without waiting for any."""

import pytest

from diloco.learner.activity import Activity, Kind
from diloco.learner.deadlines import FLOOR_SECONDS, LIMIT_SECONDS, TransferDeadlines
from diloco.learner.speed import sleep_for_speed
from diloco.runtime.backoff import Backoff, Retries


def test_delays_double_up_to_a_limit_and_begin_anew_once_something_worked() -> None:
    retries = Retries(Backoff(1.0, 5.0, lambda: 1.0))
    assert [retries.next_seconds() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    retries.worked()
    assert retries.next_seconds() == 1.0


def test_jitter_takes_at_most_half_of_a_delay() -> None:
    assert Retries(Backoff(1.0, 8.0, lambda: 0.0)).next_seconds() == 0.5


def test_many_failures_do_not_overflow() -> None:
    retries = Retries(Backoff(0.25, 5.0, lambda: 1.0))
    assert [retries.next_seconds() for _ in range(5000)][-1] == 5.0


def test_a_deadline_is_never_below_the_floor_nor_above_the_limit() -> None:
    deadlines = TransferDeadlines()
    assert deadlines.seconds(0, step_seconds=0.0) == FLOOR_SECONDS
    assert deadlines.seconds(1 << 50, step_seconds=0.0) == LIMIT_SECONDS


def test_a_deadline_follows_the_measured_rate() -> None:
    deadlines = TransferDeadlines()
    unknown = deadlines.seconds(1 << 30, step_seconds=0.0)
    deadlines.took(1 << 30, seconds=1.0)
    assert deadlines.bytes_per_second == 1 << 30
    assert FLOOR_SECONDS < deadlines.seconds(1 << 30, step_seconds=0.0) < unknown


def test_a_missed_deadline_makes_the_next_one_longer() -> None:
    deadlines = TransferDeadlines()
    deadlines.took(1 << 20, seconds=1.0)
    before = deadlines.seconds(10 << 20, step_seconds=0.0)
    deadlines.missed()
    assert deadlines.seconds(10 << 20, step_seconds=0.0) > before


def test_slow_steps_lengthen_a_deadline() -> None:
    assert TransferDeadlines().seconds(0, step_seconds=60.0) == 600.0


def test_a_small_transfer_says_nothing_about_the_rate() -> None:
    deadlines = TransferDeadlines()
    deadlines.took(100, seconds=1.0)
    assert deadlines.bytes_per_second is None


class Clock:
    """Seconds that a test moves on by itself."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_second_belongs_to_one_kind() -> None:
    clock = Clock()
    activity = Activity(clock)
    clock.now += 3
    activity.turn_to(Kind.LOOKING)
    clock.now += 1
    with activity.at(Kind.TRAINING):
        clock.now += 10
    with activity.at(Kind.PAUSED):
        clock.now += 2
        with activity.at(Kind.COPYING):
            clock.now += 0.5
        with activity.at(Kind.EVALUATING):
            clock.now += 4
        clock.now += 2
    clock.now += 0.25
    spent = activity.spent()
    assert (spent.loading, spent.training, spent.paused, spent.copying) == (3, 10, 4, 0.5)
    assert (spent.evaluating, spent.looking) == (4, 1.25)
    assert spent.wall_seconds == clock.now - 100.0
    assert spent.waited_seconds == 5.25
    assert spent.blocked_seconds == 5.75


def test_a_step_that_changed_nothing_is_counted_anew() -> None:
    clock = Clock()
    activity = Activity(clock)
    with activity.at(Kind.TRAINING):
        clock.now += 10
    activity.recount(4.0, Kind.TRAINING, Kind.SKIPPED)
    activity.recount(100.0, Kind.TRAINING, Kind.SKIPPED)
    spent = activity.spent()
    assert (spent.training, spent.skipped, spent.wall_seconds) == (0.0, 10.0, 10.0)
    assert spent.blocked_seconds == 0.0


def test_time_returns_to_its_kind_when_something_fails() -> None:
    clock = Clock()
    activity = Activity(clock)
    activity.turn_to(Kind.LOOKING)
    with pytest.raises(ZeroDivisionError), activity.at(Kind.COPYING):
        raise ZeroDivisionError
    clock.now += 1
    assert activity.spent().looking == 1


@pytest.mark.parametrize(("speed", "slept"), [(1.0, []), (0.5, [2.0]), (0.25, [6.0])])
def test_a_step_is_stretched_to_the_speed(speed: float, slept: list[float]) -> None:
    naps: list[float] = []
    assert sleep_for_speed(2.0, speed, naps.append) == sum(slept)
    assert naps == slept
