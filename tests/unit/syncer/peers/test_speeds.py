"""How fast learners are measured to be, and what one may claim beyond what is known of it."""

import pytest

from diloco.syncer.peers.speeds import Allowance, Speeds, StepSeconds

UNLIMITED = 10_000.0
"""Steps a second that anybody is believed."""


def measured(*speeds: tuple[str, float]) -> Speeds:
    """Learners that made so many steps a second for 20 seconds, measured in this order."""
    measured = Speeds()
    for learner, steps_per_second in speeds:
        for seconds in (0, 10, 20):
            measured.reported(learner, int(seconds * steps_per_second), 100.0 + seconds)
    return measured


@pytest.mark.parametrize("order", ["abc", "cba"])
def test_32_times_the_speed_of_the_fastest_other_of_the_pool_is_believed(order: str) -> None:
    steps_per_second = {"a": 4.0, "b": 2.0, "c": 1.0}
    speeds = measured(*((f"r/p/{name}", steps_per_second[name]) for name in order))
    assert speeds.most_steps_per_second("r/p/a") == 32 * 2.0
    assert speeds.most_steps_per_second("r/p/b") == speeds.most_steps_per_second("r/p/new") == 32 * 4.0


def test_alone_in_a_pool_1000_times_the_fastest_of_the_job_is_believed() -> None:
    speeds = measured(("r/q/0", 0.5), ("r/s/0", 2.0), ("r/t/0", 1.0), ("r/p/0", 7.0))
    assert speeds.most_steps_per_second("r/p/0") == 1000 * 2.0


def test_nobody_is_believed_more_than_any_machine_can_do() -> None:
    speeds = measured(("r/p/0", 1000.0), ("r/q/0", 1000.0))
    assert {speeds.most_steps_per_second(learner) for learner in ("r/p/0", "r/p/1", "r/q/0")} == {UNLIMITED}


def test_a_speed_is_known_once_it_was_measured_twice_for_five_seconds() -> None:
    speeds = Speeds()
    speeds.reported("r/p/0", 10, 100.0)
    speeds.reported("r/p/0", 12, 105.0)
    speeds.reported("r/p/0", 16, 109.9)
    assert speeds.most_steps_per_second("r/p/1") == UNLIMITED
    speeds.reported("r/p/0", 17, 110.0)
    assert speeds.most_steps_per_second("r/p/1") == 32 * 1.0


def test_the_highest_speed_counts_even_if_it_was_the_first() -> None:
    speeds = Speeds()
    for step, now in ((10, 100.0), (50, 105.0), (51, 110.0)):
        speeds.reported("r/p/0", step, now)
    assert speeds.most_steps_per_second("r/p/1") == 32 * 8.0


def test_what_was_slow_before_does_not_hide_that_it_is_fast_now() -> None:
    speeds = measured(("r/p/0", 1.0))
    speeds.reported("r/p/0", 20 + 100, 130.0)
    assert speeds.most_steps_per_second("r/p/1") == 32 * 10.0


@pytest.mark.parametrize(("reports", "believed"), [(1, UNLIMITED), (2, UNLIMITED), (3, 32 * 1.0)])
def test_the_first_step_of_another_process_is_not_measured(reports: int, believed: float) -> None:
    speeds = Speeds()
    for number in range(reports):
        speeds.reported("r/p/0", 10 * number, 100.0 + 10 * number)
    speeds.begins("r/p/0")
    speeds.reported("r/p/0", 31, 700.0)  # it has compiled
    speeds.reported("r/p/0", 32, 1300.0)  # and compiled once more
    assert speeds.most_steps_per_second("r/p/1") == believed
    speeds.reported("r/p/0", 52, 1310.0)
    assert speeds.most_steps_per_second("r/p/1") == 32 * 2.0


NOW = 100.0


def training(claimed: float, *, every_seconds: float, at_once: int = 1, reports: int = 40) -> list[float]:
    """What counts of the claims of a learner that sends reports of one step each, several at once, at these times."""
    steps = StepSeconds(0, NOW - 50.0)
    return [
        steps.believed(claimed, number + 1, NOW + every_seconds * at_once * (number // at_once))
        for number in range(reports)
    ]


def test_what_a_learner_says_of_its_steps_counts_within_limits() -> None:
    assert training(0.3, every_seconds=0.4) == [0.3] * 40
    assert training(0.0, every_seconds=0.4)[1:] == pytest.approx([0.2] * 39)
    assert training(1e9, every_seconds=0.4)[1:] == pytest.approx([0.8] * 39)


def test_reports_that_are_held_back_and_sent_at_once_hide_no_time() -> None:
    assert min(training(0.0, every_seconds=0.4, at_once=5)[10:]) > 0.1
    assert max(training(1e9, every_seconds=0.4, at_once=5)[10:]) < 2.0


def test_a_first_step_takes_at_most_as_long_as_the_session() -> None:
    assert [StepSeconds(0, NOW).believed(claimed, 1, NOW + 5.0) for claimed in (3.0, 1e9)] == [3.0, 5.0]


def test_a_report_of_many_steps_is_measured_as_such() -> None:
    steps = StepSeconds(100, NOW)
    steps.believed(0.4, 101, NOW)
    assert steps.believed(0.0, 201, NOW + 40.0) == pytest.approx(0.2)
    assert steps.believed(0.0, 201, NOW + 90.0) == pytest.approx(0.2)  # no more steps than before


def test_the_time_without_a_session_is_not_measured() -> None:
    steps = StepSeconds(0, NOW)
    for step in (1, 2, 3):
        steps.believed(0.4, step, NOW + 0.4 * step)
    steps.begins(10, NOW + 1000.0)
    assert steps.believed(0.4, 11, NOW + 1060.0) == 0.4
    assert steps.believed(0.4, 12, NOW + 1060.4) == pytest.approx(0.4)


def allowance() -> Allowance:
    """Of a learner at step 100 and sequence 400, with 4 sequences a step; it may make 60 steps on its own."""
    return Allowance(100, 400, 1000.0, 60)


def may_claim(allowance: Allowance, steps: int, data_position: int) -> bool:
    return allowance.problem(steps, data_position, 4, 2.0) == ""


def test_steps_and_sequences_are_bounded_each_by_itself() -> None:
    assert may_claim(allowance(), 160, 640)
    assert not may_claim(allowance(), 161, 400)
    assert not may_claim(allowance(), 100, 641)
    used = allowance()
    used.record(100, 640, 4)
    assert may_claim(used, 160, 640)
    assert not may_claim(used, 101, 641)
    used = allowance()
    used.record(160, 400, 4)
    assert may_claim(used, 160, 640)
    assert not may_claim(used, 161, 640)


def test_saying_the_same_again_uses_nothing_up() -> None:
    used = allowance()
    for _ in range(100):
        used.record(100, 400, 4)
        used.record(90, 300, 4)
    assert may_claim(used, 160, 640)


def test_silence_is_worth_no_more_than_half_a_minute() -> None:
    long_silent = allowance()
    long_silent.grow(100_000.0, 2.0)
    assert may_claim(long_silent, 100 + 60 + 30 * 2, 400 + 4 * (60 + 30 * 2))
    assert not may_claim(long_silent, 101 + 60 + 30 * 2, 400)
    assert not may_claim(long_silent, 100, 401 + 4 * (60 + 30 * 2))


def test_time_gives_steps_back_at_the_speed_that_is_believed() -> None:
    used = allowance()
    used.record(160, 640, 4)
    used.grow(1003.0, 2.0)
    used.grow(1003.0, 2.0)
    assert used.problem(167, 665, 4, 2.0) == (
        "7 steps and 25 sequences more than are known; there was time for 6 steps and 24 sequences, at 2 steps a second"
    )
    assert may_claim(used, 166, 664)
    assert not may_claim(used, 166, 665)
