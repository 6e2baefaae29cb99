"""How fast a count has grown recently."""

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


def test_a_rate_forgets_what_was_before_a_long_silence() -> None:
    rate = Rate(30.0)
    for second, count in ((0.0, 0.0), (100.0, 50.0), (200.0, 60.0)):
        rate.add(second, count)
    assert rate.per_second == 0.1


def test_two_samples_of_one_moment_are_no_rate() -> None:
    rate = Rate(30.0)
    rate.add(5.0, 1.0)
    rate.add(5.0, 2.0)
    assert rate.per_second == 0.0


def test_a_count_that_falls_back_has_no_negative_rate() -> None:
    rate = Rate(30.0)
    rate.add(0.0, 10.0)
    rate.add(1.0, 5.0)
    assert rate.per_second == 0.0
