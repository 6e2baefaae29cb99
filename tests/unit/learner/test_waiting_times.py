"""Back-off, deadlines, the account of wall time, simulated speed: arithmetic on time, without waiting."""

import math

import pytest

from diloco.learner.activity import Activity, Kind
from diloco.learner.exchange.transfers import TransferDeadlines, reconnecting
from diloco.learner.options import LEAST_SPEED
from diloco.learner.step_times import StepTimes
from diloco.runtime.backoff import Backoff, Retries
from tests.support.hand_clock import HandClock


def test_delays_double_up_to_a_limit_and_begin_anew_once_something_worked() -> None:
    retries = Retries(Backoff(1.0, 5.0, lambda: 1.0))
    assert [retries.next_seconds() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    retries.worked()
    assert retries.next_seconds() == 1.0


def test_a_syncer_that_was_gone_is_looked_for_every_two_seconds() -> None:
    backoff = Retries(reconnecting(lambda: 1.0))
    assert [backoff.next_seconds() for _ in range(5)] == [0.25, 0.5, 1.0, 2.0, 2.0]


def test_delays_double_thirty_times_at_most() -> None:
    backoff = Backoff(1.0, math.inf, lambda: 1.0)
    assert [backoff.seconds(failures) for failures in (30, 31, 32, 5000)] == [2.0**29, 2.0**30, 2.0**30, 2.0**30]


def test_jitter_takes_at_most_half_of_a_delay() -> None:
    assert Retries(Backoff(1.0, 8.0, lambda: 0.0)).next_seconds() == 0.5


MIB = 1 << 20


@pytest.mark.parametrize(
    ("transfer_bytes", "step_seconds", "seconds"),
    [
        (0, 0.0, 20.0),
        (0, 2.0, 20.0),
        (0, 3.0, 30.0),
        (MIB, 0.0, 28.0),  # at 1 MiB/s, the rate that is assumed, eight times over
        (3 * MIB, 60.0, 624.0),
        (1 << 50, 0.0, 3600.0),
    ],
)
def test_a_deadline_has_room_for_a_transfer_and_for_ten_steps(
    transfer_bytes: int, step_seconds: float, seconds: float
) -> None:
    assert TransferDeadlines().seconds(transfer_bytes, step_seconds) == seconds


def test_a_deadline_follows_the_moving_average_of_the_measured_rate() -> None:
    deadlines = TransferDeadlines()
    rates = [deadlines.bytes_per_second]
    deadlines.took(MIB, seconds=2.0)
    rates.append(deadlines.bytes_per_second)
    assert rates == [None, MIB / 2]
    assert deadlines.seconds(MIB, step_seconds=0.0) == 20.0 + 8 * 2.0
    deadlines.took(MIB, seconds=0.25)
    assert deadlines.bytes_per_second == pytest.approx(0.7 * MIB / 2 + 0.3 * MIB * 4, rel=1e-12)


def test_a_transfer_that_took_no_time_is_one_of_a_microsecond() -> None:
    deadlines = TransferDeadlines()
    deadlines.took(MIB, seconds=0.0)
    assert deadlines.bytes_per_second == MIB / 1e-6


def test_a_missed_deadline_halves_the_rate_down_to_a_kibibyte_a_second() -> None:
    deadlines = TransferDeadlines()
    for began in (100.0, 101.0, 102.0):  # which were under way together
        deadlines.missed(began, 150.0)
    assert deadlines.seconds(MIB, step_seconds=0.0) == 20.0 + 8 * 2.0
    for minutes in range(20):
        deadlines.missed(200.0 + 60 * minutes, 230.0 + 60 * minutes)
    assert deadlines.seconds(1024, step_seconds=0.0) == 20.0 + 8 * 1.0


@pytest.mark.parametrize(("transfer_bytes", "measured"), [((1 << 16) - 1, None), (1 << 16, 1 << 16)])
def test_a_small_transfer_says_nothing_about_the_rate(transfer_bytes: int, measured: int | None) -> None:
    deadlines = TransferDeadlines()
    deadlines.took(transfer_bytes, seconds=1.0)
    assert deadlines.bytes_per_second == measured


def test_small_transfers_make_up_for_missed_deadlines() -> None:
    deadlines = TransferDeadlines()
    for minutes in range(20):
        deadlines.missed(60.0 * minutes, 60.0 * minutes + 30)
    deadlines.took(1 << 15, seconds=0.25)
    assert deadlines.seconds(1 << 17, step_seconds=0.0) == 20.0 + 8 * 1.0
    deadlines.took(1, seconds=1.0)
    assert deadlines.seconds(1 << 17, step_seconds=0.0) == 20.0 + 8 * 1.0


def test_a_step_that_changed_nothing_is_counted_anew() -> None:
    clock = HandClock()
    activity = Activity(clock)
    with activity.at(Kind.TRAINING):
        clock.now += 10
    activity.reclassify(4.0, Kind.TRAINING, Kind.SKIPPED)
    activity.reclassify(100.0, Kind.TRAINING, Kind.SKIPPED)
    spent = activity.spent()
    assert (spent.training, spent.skipped, spent.wall_seconds) == (0.0, 10.0, 10.0)
    assert spent.blocked_seconds == 0.0


def test_time_returns_to_its_kind_when_something_fails() -> None:
    clock = HandClock()
    activity = Activity(clock)
    activity.switch_to(Kind.LOOKING)
    with pytest.raises(ZeroDivisionError), activity.at(Kind.COPYING):
        raise ZeroDivisionError
    clock.now += 1
    assert activity.spent().looking == 1


@pytest.mark.parametrize(("speed", "paused"), [(1.0, 0.0), (0.8, 0.5), (0.5, 2.0), (0.25, 6.0), (LEAST_SPEED, 1998.0)])
def test_a_step_is_stretched_to_the_speed(speed: float, paused: float) -> None:
    times = StepTimes(speed, on_cpu=False)
    assert times.made(2.0, 1, skipped=False) == 0.0  # nothing is known to be usual
    assert times.made(2.0, 1, skipped=False) == pytest.approx(paused)
    assert times.usual_seconds == pytest.approx(2.0 / speed)


def test_a_skipped_step_says_nothing_about_the_usual_one() -> None:
    times = StepTimes(0.5, on_cpu=False)
    times.made(2.0, 1, skipped=False)
    assert times.made(3.0, 1, skipped=True) == 3.0
    assert times.usual_seconds == 4.0
