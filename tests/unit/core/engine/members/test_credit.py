"""What counts of the steps and tokens that a learner reports and pushes."""

import pytest

from diloco.core.engine.events import FragmentArrived
from diloco.core.engine.members.credit import Credit
from diloco.core.engine.rounds.averages import StepAverage

INTERVAL = 8


def sent(steps: int, tokens: int | None = None) -> FragmentArrived:
    return FragmentArrived("r/p/0", 1, 0, 1, 1, 0, steps, 100 * steps if tokens is None else tokens, 64, "0")


def credited(least_step_seconds: float = 0.0, most: float | None = None) -> Credit:
    return Credit(least_step_seconds, most, merged_tokens=[0.0])


def pace(step_seconds: float, tokens: int = 100) -> StepAverage:
    average = StepAverage()
    average.add(step_seconds, 1, tokens)
    return average


def test_with_nothing_to_compare_everything_counts() -> None:
    credit = credited()
    assert credit.report(pace(1e-9), 1000, 100_000) == 1000
    assert (credit.steps, credit.tokens, credit.share(pace(1e-9))) == (1000, 100_000, 1.0)


def test_steps_count_as_many_as_their_time_has_room_for() -> None:
    credit = credited(least_step_seconds=0.5)
    assert [credit.report(pace(0.125), 1, 0) for _ in range(9)] == [0, 0, 0, 1, 0, 0, 0, 1, 0]
    assert credit.share(pace(0.125)) == 0.25
    assert credit.report(pace(0.5), 3, 0) == credit.report(pace(5.0), 3, 0) == 3


def test_tokens_count_as_many_as_their_time_has_room_for() -> None:
    credit = credited(most=400.0)
    credit.report(pace(0.2), 10, 1000)
    assert credit.tokens == pytest.approx(800.0)
    assert credit.steps == 10
    credit.report(pace(1.0), 10, 1000)
    assert credit.tokens == pytest.approx(1800.0)


def test_what_takes_no_time_does_not_count() -> None:
    credit = credited(least_step_seconds=0.5, most=400.0)
    assert credit.report(pace(0.0), 10, 1000) == 0
    assert (credit.steps, credit.tokens) == (0.0, 0.0)


@pytest.mark.parametrize(("least", "steps"), [(0.0, 18.0), (0.5, 4.0)])
def test_steps_without_a_session_count_as_many_as_there_was_time_for(least: float, steps: float) -> None:
    credit = credited(least)
    credit.away(pace(0.5), 18, 2.0)
    assert (credit.steps, credit.tokens) == (steps, 100 * steps)


def test_a_push_counts_as_it_is_if_reports_cover_it_or_soon_will() -> None:
    credit = credited()
    assert credit.of(sent(INTERVAL), INTERVAL, pace(1.0)) == sent(INTERVAL)
    credit.report(pace(1.0), 4, 400)
    assert credit.of(sent(INTERVAL + 4), INTERVAL, pace(1.0)) == sent(INTERVAL + 4)


def test_of_a_push_beyond_that_only_the_rest_counts() -> None:
    credit = credited()
    credit.report(pace(1.0), 4, 400)
    counts = credit.of(sent(48), INTERVAL, pace(1.0))
    assert (counts.steps, counts.tokens) == (12, 1200)
    credit.merged(counts)
    assert credit.of(sent(48), INTERVAL, pace(1.0)).tokens == 0


def test_work_that_was_merged_is_not_counted_again() -> None:
    credit = credited()
    for _ in range(5):
        credit.report(pace(1.0), 8, 800)
        assert credit.of(sent(8), INTERVAL, pace(1.0)) == sent(8)
        credit.merged(sent(8))
    assert credit.of(sent(48), INTERVAL, pace(1.0)).steps == INTERVAL


def test_work_that_was_not_merged_can_be_pushed_again_but_not_saved() -> None:
    credit = credited()
    credit.report(pace(1.0), 40, 4000)
    assert credit.of(sent(40), INTERVAL, pace(1.0)) == sent(40)
    credit.merged(sent(8))
    assert credit.of(sent(40), INTERVAL, pace(1.0)).steps == INTERVAL


@pytest.mark.parametrize("nothing", [sent(0, 100), sent(4, 0), sent(-1, -1)])
def test_a_push_without_steps_or_without_tokens_counts_nothing(nothing: FragmentArrived) -> None:
    assert credited().of(nothing, INTERVAL, pace(1.0)).tokens == 0


def test_tokens_that_are_put_into_fewer_steps_than_reported_weigh_no_more() -> None:
    counts = credited().of(sent(2, 800), INTERVAL, pace(1.0))
    assert (counts.steps, counts.tokens) == (8, 800)


def test_a_step_has_no_more_tokens_than_those_of_comparable_learners() -> None:
    credit = credited()
    credit.most_tokens_per_step = 200.0
    counts = credit.of(sent(2, 800), INTERVAL, pace(1.0, tokens=400))
    assert (counts.steps, counts.tokens) == (4, 800)
    assert credit.of(sent(2, 200), INTERVAL, StepAverage()) == sent(2, 200), "before its first report"
    credit.most_tokens_per_step = None
    assert credit.of(sent(2, 800), INTERVAL, pace(1.0, tokens=0)).tokens == 0, "none is reported"
