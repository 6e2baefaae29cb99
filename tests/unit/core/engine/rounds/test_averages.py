import dataclasses
import math

import pytest

from diloco.core.engine.rounds.averages import MovingAverage, SizedSpread, StepAverage


def test_an_average_keeps_four_fifths_of_what_it_was() -> None:
    average = MovingAverage()
    assert average.or_else(7.0) == 7.0
    for measured, expected in ((1.0, 1.0), (3.0, 1.4), (0.0, 1.12)):
        average.add(measured)
        assert average.seconds == pytest.approx(expected)


def test_a_report_counts_by_its_steps() -> None:
    average = StepAverage()
    for _ in range(20):
        average.add(1.0, 1, 100)
    average.add(0.02, 50, 5000)
    assert average.seconds == pytest.approx(0.2 * 50 * 0.02 / 10.8 + 0.8 / 10.8)
    assert average.tokens_per_step == pytest.approx(100.0)
    assert average.tokens_per_second == pytest.approx(100.0 / (average.seconds or 0.0))


def test_the_first_report_counts_until_the_second() -> None:
    average = StepAverage()
    assert (average.seconds, average.tokens_per_second, average.tokens_per_step) == (None, 0.0, 0.0)
    average.add(300.0, 1, 100)
    assert average.seconds == 300.0
    average.add(0.5, 1, 100)
    assert average.seconds == 0.5
    average.add(1.0, 1, 100)
    assert average.seconds == pytest.approx(0.6)


def test_a_duration_of_nothing_is_one() -> None:
    average, spread = MovingAverage(), SizedSpread()
    average.add(0.0)
    spread.add(0.0)
    assert (average.seconds, spread.mean, spread.of(1.0)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("nonsense", [-1.0, math.nan, math.inf])
def test_what_is_no_duration_changes_nothing(nonsense: float) -> None:
    average, spread, steps = MovingAverage(1.0), learned((0.3, 0.5), (0.9, 2.0)), StepAverage()
    before = dataclasses.replace(spread)
    average.add(nonsense)
    steps.add(nonsense)
    assert steps == StepAverage()
    spread.add(nonsense, 1.0)
    spread.at_least(nonsense, 1.0)
    assert (average.seconds, spread) == (1.0, before)


def learned(*measured: tuple[float, float], rounds: int = 20) -> SizedSpread:
    spread = SizedSpread()
    for _ in range(rounds):
        for seconds, size in measured:
            spread.add(seconds, size)
    return spread


def test_what_bytes_cost_is_told_from_what_every_fragment_takes() -> None:
    spread = learned(*[(0.3, 0.5)] * 11, (1.55, 6.5), *[(0.3, 0.5)] * 11)
    assert spread.of(0.5) == pytest.approx(0.3, rel=0.05)
    assert spread.of(6.5) == pytest.approx(1.55, rel=0.05)
    assert spread.deviation < 0.05


def test_where_sizes_are_alike_it_is_the_mean_of_all() -> None:
    spread = learned((1.0, 1.0), (2.0, 1.001))
    assert spread.slope == 0
    assert spread.of(7.0) == spread.mean


def test_a_round_trip_is_not_put_down_to_size() -> None:
    spread = learned((0.2, 0.5), (0.2, 0.5), (0.2, 2.0))
    assert spread.of(7.0) == pytest.approx(0.2)


@pytest.mark.parametrize("size", [0.3, 1.0, 6.5])
def test_what_took_too_long_to_measure_is_taken_for_so_long(size: float) -> None:
    for spread in (SizedSpread(), learned((0.1, 1.0), (0.1, 1.0)), learned((0.3, 0.5), (0.9, 2.0))):
        spread.at_least(3.0, size)
        assert spread.of(size) == pytest.approx(3.0)


def test_a_slow_large_fragment_raises_other_estimates_only_if_it_must() -> None:
    spread = learned((0.1, 1.0), (0.1, 1.0))
    spread.at_least(0.6, 6.5)
    assert spread.of(1.0) == pytest.approx(0.1)
    spread.at_least(1.3, 6.5)
    assert spread.of(1.0) == pytest.approx(0.2)


def test_mean_and_deviation_move_as_tcp_has_them() -> None:
    spread = SizedSpread()
    spread.add(1.0)
    assert (spread.mean, spread.deviation) == (1.0, 0.5)
    spread.add(3.0)
    assert spread.deviation == pytest.approx(0.75 * 0.5 + 0.25 * 2.0)
    assert spread.mean == pytest.approx(1.4)
    spread.add(1.4)
    assert spread.deviation == pytest.approx(0.75 * 0.875)


def test_what_took_at_least_so_long_is_not_shortened_by_it() -> None:
    spread = learned((2.0, 1.0))
    before = dataclasses.replace(spread)
    spread.at_least(1.0)
    spread.at_least(2.0)
    assert spread == before
    spread.at_least(6.0)
    assert (spread.of(1.0), spread.deviation) == (6.0, 3.0)


def test_the_slope_is_told_from_sizes_beside_their_own_mean() -> None:
    spread = SizedSpread()
    for seconds, size in ((10.0, 1.0), (12.0, 2.0), (10.0, 2.0)):
        spread.add(seconds, size)
    assert spread.slope == pytest.approx(38 / 39)


@pytest.mark.parametrize(
    ("seconds", "size", "mean", "slope"),
    [
        (0.5, 0.5, 0.5, 0.0),
        (0.5, 1.0, 0.5, 0.0),
        (3.0, 1.5, 2.0, 2.0),  # all of it is put down to the size
        (0.5, 2.0, 0.25, 0.25),
        (6.5, 6.5, 1.0, 1.0),
    ],
)
def test_what_took_at_least_so_long_may_be_the_first_there_is(
    seconds: float, size: float, mean: float, slope: float
) -> None:
    spread = SizedSpread()
    spread.at_least(seconds, size)
    assert (spread.mean, spread.slope, spread.deviation) == (mean, slope, seconds / 2)


def test_what_took_at_least_so_long_weighs_as_much_as_one_measurement() -> None:
    spread = SizedSpread()
    spread.at_least(6.5, 6.5)  # 1 s for each size more
    spread.add(3.75, 1.0)  # from there to here, half a second
    assert spread.slope == pytest.approx(0.75)


def test_a_size_more_never_costs_more_than_a_fragment_of_mean_size() -> None:
    spread = SizedSpread()
    for seconds, size in ((1.0, 1.0), (3.0, 2.0), (0.0, 1.0), (0.0, 1.0)):
        spread.add(seconds, size)
        assert spread.mean is not None
        assert 0 <= spread.slope <= spread.mean
