import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.core.request_leads import AnswerTime, Leads, best_leads


def times(**seconds: float) -> dict[str, AnswerTime]:
    """Learners of one speed that take this long to answer, without deviation."""
    return {name: AnswerTime(value, 0.0, 100.0) for name, value in seconds.items()}


def test_learners_that_answer_alike_are_all_asked_at_the_launch() -> None:
    best = best_leads(times(a=0.4, b=0.4, c=0.4), step_seconds=1.0, maximum_steps=12)
    assert best.steps == {"a": 0, "b": 0, "c": 0}
    assert best.expected_seconds == pytest.approx(0.4)


def test_a_far_learner_is_asked_ahead_so_that_it_comes_with_the_others() -> None:
    best = best_leads(times(near=0.01, nearby=0.01, beside=0.01, far=2.3), step_seconds=1.0, maximum_steps=12)
    assert best.steps == {"near": 0, "nearby": 0, "beside": 0, "far": 3}
    assert best.expected_seconds == pytest.approx(0.01)


def test_two_learners_wait_rather_than_lose_a_step_for_little() -> None:
    best = best_leads(times(near=0.0, far=2.3), step_seconds=1.0, maximum_steps=12)
    assert best.steps == {"near": 0, "far": 2}
    assert best.expected_seconds == pytest.approx(0.3)


def test_a_fast_learner_s_time_weighs_more_than_a_slow_one_s() -> None:
    slow = {"far": AnswerTime(0.3, 0.0, 10.0), "near": AnswerTime(0.0, 0.0, 100.0)}
    fast = {"far": AnswerTime(0.3, 0.0, 100.0), "near": AnswerTime(0.0, 0.0, 10.0)}
    assert best_leads(slow, 1.0, 12).steps["far"] == 1
    assert best_leads(fast, 1.0, 12).steps["far"] == 0


def test_deviations_are_headroom() -> None:
    jittery = {"a": AnswerTime(0.0, 0.0, 100.0), "b": AnswerTime(0.9, 0.2, 100.0), "c": AnswerTime(0.0, 0.0, 100.0)}
    assert best_leads(jittery, 1.0, 12).steps["b"] == 1
    assert best_leads(jittery, 1.0, 12).expected_seconds == pytest.approx(0.3)


def test_no_lead_is_longer_than_the_limit() -> None:
    assert best_leads(times(a=0.0, b=50.0), step_seconds=1.0, maximum_steps=12).steps == {"a": 0, "b": 12}


@pytest.mark.parametrize("step_seconds", [0.0, -1.0])
def test_nothing_is_planned_before_a_step_is_measured(step_seconds: float) -> None:
    assert best_leads(times(a=1.0), step_seconds, 12).steps == {}


def lost_tokens(answers: dict[str, AnswerTime], target: float, step_seconds: float) -> float:
    """The loss of a choice of T, by the module's formula."""
    lost = target * sum(time.tokens_per_second for time in answers.values())
    for time in answers.values():
        late = (time.seconds + 2 * time.deviation_seconds - target) / step_seconds
        steps = max(0, -int(-late // 1)) if late > 1e-9 else 0
        lost += steps * step_seconds * time.tokens_per_second
    return lost


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.builds(AnswerTime, st.floats(0, 5), st.floats(0, 0.5), st.floats(1, 100)),
        min_size=1,
    )
)
def test_no_other_moment_within_a_step_loses_less(answers: dict[str, AnswerTime]) -> None:
    best = best_leads(answers, 1.0, 100)
    mine = lost_tokens(answers, best.expected_seconds, 1.0)
    assert all(mine <= lost_tokens(answers, tenth / 10, 1.0) + 1e-4 for tenth in range(10))


def test_expected_times_are_in_seconds_and_leads_in_steps() -> None:
    best = best_leads(times(near=0.0, far=1.15), step_seconds=0.5, maximum_steps=12)
    assert best.steps == {"near": 0, "far": 2}
    assert best.expected_seconds == pytest.approx(0.15)


def test_of_two_moments_that_cost_the_same_the_earlier_is_taken() -> None:
    best = best_leads(times(a=0.5, b=0.0), step_seconds=1.0, maximum_steps=12)
    assert (best.expected_seconds, best.steps) == (0.0, {"a": 1, "b": 0})


def test_where_nobody_is_measured_answers_are_expected_at_the_launch() -> None:
    assert best_leads({}, 1.0, 12) == Leads(0.0, {})
    assert best_leads(times(a=1.0), 0.0, 12) == Leads(0.0, {})
