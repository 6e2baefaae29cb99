import pytest

from diloco.runtime.rate import Rate


def test_a_rate_is_of_the_latest_window() -> None:
    rate = Rate(30.0)
    assert rate.per_second == 0.0
    for second in range(100):
        rate.add(float(second), 1000.0 + (10.0 * second if second < 50 else 500.0 + 2.0 * (second - 50)))
    assert rate.per_second == pytest.approx(2.0)
    rate.add(100.0, 1000.0 + 500.0 + 2.0 * 50)
    rate.add(115.0, 1000.0 + 500.0 + 2.0 * 50)
    assert rate.per_second == pytest.approx(1.0)


@pytest.mark.parametrize(("jump_at", "jumps"), [(70, 0), (71, 1), (85, 1), (100, 1)])
def test_a_rate_counts_what_came_after_the_window_began(jump_at: int, jumps: int) -> None:
    rate = Rate(30.0)
    for second in range(101):
        rate.add(float(second), 60.0 * (second >= jump_at))
    assert rate.per_second == jumps * 60.0 / 30.0


@pytest.mark.parametrize(
    ("samples", "per_second"),
    [
        ([(0.0, 0.0), (100.0, 50.0), (200.0, 60.0)], 0.1),  # what was before a long silence is forgotten
        ([(5.0, 1.0), (5.0, 2.0)], 0.0),  # two samples of one moment
        ([(0.0, 10.0), (1.0, 5.0)], 0.0),  # a count that falls back
    ],
)
def test_odd_samples_give_no_odd_rate(samples: list[tuple[float, float]], per_second: float) -> None:
    rate = Rate(30.0)
    for second, count in samples:
        rate.add(second, count)
    assert rate.per_second == per_second
