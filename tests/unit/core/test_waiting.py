"""Which learners a round with its quorum waits for, as a table and as a reason."""

from typing import Any

import pytest

from diloco.core.waiting import Candidate, Expectation, Wait, wait_for

NOW = 100.0


def candidate(learner: str, **changes: Any) -> Candidate:
    usual: dict[str, Any] = {
        "since": NOW,
        "usual_seconds": 0.5,
        "deviation_seconds": 0.05,
        "stake_tokens": 1000.0,
        "missed": False,
    }
    return Candidate(learner, **(usual | changes))


def wait(*candidates: Candidate, bound_at: float = NOW + 2.0, tokens_per_second: float = 100.0) -> Wait:
    return wait_for(candidates, NOW, bound_at, tokens_per_second=tokens_per_second, step_seconds=0.1)


def test_a_ready_learner_is_awaited_until_four_deviations_after_its_usual() -> None:
    decided = wait(candidate("a"))
    assert decided.deadlines == {"a": pytest.approx(NOW + 0.5 + 4 * 0.05)}
    assert decided.expectations == {"a": Expectation.AWAITED}
    assert "waits for a at most 0.700 s" in decided.reason


def test_time_since_the_ask_counts() -> None:
    assert wait(candidate("a", since=NOW - 0.4)).deadlines == {"a": pytest.approx(NOW + 0.3)}


def test_a_learner_without_jitter_is_given_some_all_the_same() -> None:
    deadline = wait(candidate("a", deviation_seconds=0.0)).deadlines["a"]
    assert deadline == pytest.approx(NOW + 0.5 + (0.5 + 0.1) / 8)


def test_a_learner_that_was_never_measured_is_waited_for_to_the_bound() -> None:
    assert wait(candidate("a", usual_seconds=None)).deadlines == {"a": NOW + 2.0}


def test_nobody_is_waited_for_beyond_the_bound() -> None:
    decided = wait(candidate("a", usual_seconds=1.9, deviation_seconds=1.0), candidate("b", usual_seconds=2.1))
    assert decided.deadlines == {"a": NOW + 2.0}
    assert decided.expectations["b"] == Expectation.TOO_SLOW
    assert "not for b (usually comes after the bound)" in decided.reason


def test_nobody_is_waited_for_once_the_bound_is_reached() -> None:
    assert wait(candidate("a"), candidate("b", usual_seconds=None), bound_at=NOW).deadlines == {}


def test_one_that_missed_its_last_deadline_is_not_waited_for() -> None:
    decided = wait(candidate("a", missed=True))
    assert decided.deadlines == {}
    assert decided.expectations == {"a": Expectation.MISSED}
    assert "waits for no answer; not for a (has not answered since it was last waited for)" in decided.reason


@pytest.mark.parametrize(
    ("tokens_per_second", "expected"), [(1999.0, Expectation.AWAITED), (2001.0, Expectation.NOT_WORTH_IT)]
)
def test_an_answer_must_bring_more_than_the_wait_costs(tokens_per_second: float, expected: Expectation) -> None:
    assert wait(candidate("a"), tokens_per_second=tokens_per_second).expectations == {"a": expected}


def test_what_several_bring_together_is_held_against_one_wait() -> None:
    # Alone, each adds 1000 tokens for half a second that costs 1500; the two arrive together.
    assert wait(candidate("a"), tokens_per_second=3000.0).deadlines == {}
    assert set(wait(candidate("a"), candidate("b"), tokens_per_second=3000.0).deadlines) == {"a", "b"}


def test_the_wait_ends_before_those_that_cost_more_than_they_bring() -> None:
    near, far = candidate("near", usual_seconds=0.1), candidate("far", usual_seconds=1.9, stake_tokens=10.0)
    decided = wait(near, far)
    assert set(decided.deadlines) == {"near"}
    assert decided.expectations["far"] == Expectation.NOT_WORTH_IT


def test_ties_are_decided_by_name_whatever_the_order_of_candidates() -> None:
    candidates = [candidate(name) for name in "cab"]
    assert wait(*candidates) == wait(*reversed(candidates))


def test_who_brings_nothing_is_not_waited_for() -> None:
    assert wait(candidate("a", stake_tokens=0.0)).deadlines == {}


@pytest.mark.parametrize(
    ("stakes", "usual_seconds", "awaited"),
    [
        ((30.0, 20.0), (0.5, 0.1), ["b"]),  # in the order of their answers: 20 for 10, and 30 more for 40 more
        ((20.0, 20.0), (0.1, 0.1), ["a", "b"]),
        ((50.0, 0.0), (0.5, 0.5), []),  # worth exactly what the wait costs
        ((51.0, 0.0), (0.5, 0.5), ["a"]),
    ],
)
def test_answers_are_weighed_in_the_order_in_which_they_come(
    stakes: tuple[float, float], usual_seconds: tuple[float, float], awaited: list[str]
) -> None:
    first, second = (
        candidate(learner, stake_tokens=stake, usual_seconds=usual)
        for learner, stake, usual in zip("ab", stakes, usual_seconds, strict=True)
    )
    assert sorted(wait(first, second).deadlines) == awaited
