import pytest

from diloco.core.averages import MovingAverage


def test_the_first_measurement_is_the_average() -> None:
    average = MovingAverage()
    assert average.or_else(7.0) == 7.0
    average.add(2.0)
    assert average.seconds == 2.0


def test_it_moves_towards_what_is_measured() -> None:
    average = MovingAverage(1.0)
    for _ in range(50):
        average.add(3.0)
    assert average.seconds == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize("nonsense", [-1.0, float("nan"), float("inf")])
def test_nonsense_is_left_out(nonsense: float) -> None:
    average = MovingAverage(1.0)
    average.add(nonsense)
    assert average.seconds == 1.0
