import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.core.engine.rounds.leads import AnswerTime, best_leads


def times(**seconds: float) -> dict[str, AnswerTime]:
    """Learners of one speed that take this long to answer, without deviation."""
    return {name: AnswerTime(value, 0.0, 100.0) for name, value in seconds.items()}


@pytest.mark.parametrize(
    ("answers", "step_seconds", "leads", "expected_seconds"),
    [
        ({"a": 0.4, "b": 0.4, "c": 0.4}, 1.0, [0, 0, 0], 0.4),
        # One that is far is asked ahead, so that it comes with the others.
        ({"near": 0.01, "nearby": 0.01, "beside": 0.01, "far": 2.3}, 1.0, [0, 0, 0, 3], 0.01),
        # Two wait rather than lose a step for little.
        ({"near": 0.0, "far": 2.3}, 1.0, [0, 2], 0.3),
        ({"near": 0.0, "far": 1.15}, 0.5, [0, 2], 0.15),
        # Of two moments that cost the same the earlier is taken.
        ({"a": 0.5, "b": 0.0}, 1.0, [1, 0], 0.0),
        ({"a": 0.0, "b": 50.0}, 1.0, [0, 12], 0.0),  # the limit
        ({"a": 1.0}, 0.0, [], 0.0),  # no step is measured yet
        ({}, 1.0, [], 0.0),
    ],
)
def test_learners_are_asked_as_early_as_loses_the_fewest_tokens(
    answers: dict[str, float], step_seconds: float, leads: list[int], expected_seconds: float
) -> None:
    best = best_leads(times(**answers), step_seconds, 12)
    assert best.steps == dict(zip(answers, leads, strict=False))
    assert best.expected_seconds == pytest.approx(expected_seconds)


def test_a_fast_learner_s_time_weighs_more_than_a_slow_one_s() -> None:
    slow = {"far": AnswerTime(0.3, 0.0, 10.0), "near": AnswerTime(0.0, 0.0, 100.0)}
    fast = {"far": AnswerTime(0.3, 0.0, 100.0), "near": AnswerTime(0.0, 0.0, 10.0)}
    assert best_leads(slow, 1.0, 12).steps["far"] == 1
    assert best_leads(fast, 1.0, 12).steps["far"] == 0


def test_deviations_are_headroom() -> None:
    jittery = {"a": AnswerTime(0.0, 0.0, 100.0), "b": AnswerTime(0.9, 0.2, 100.0), "c": AnswerTime(0.0, 0.0, 100.0)}
    assert best_leads(jittery, 1.0, 12).steps["b"] == 1
    assert best_leads(jittery, 1.0, 12).expected_seconds == pytest.approx(0.3)


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
