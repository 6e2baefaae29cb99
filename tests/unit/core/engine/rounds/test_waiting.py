"""Which learners a round with its quorum waits for, as a table and as a reason."""

from typing import Any

import pytest

from diloco.core.engine.rounds.waiting import Candidate, Expectation, Wait, wait_for

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


@pytest.mark.parametrize(
    ("candidates", "seconds", "reason"),
    [
        # Until four deviations after its usual time since the ask; without jitter it is given some all the same.
        ([candidate("a")], {"a": 0.5 + 4 * 0.05}, "waits for a at most 0.700 s"),
        ([candidate("a", since=NOW - 0.4)], {"a": 0.3}, ""),
        ([candidate("a", deviation_seconds=0.0)], {"a": 0.5 + (0.5 + 0.1) / 8}, ""),
        # To the bound, and not beyond.
        ([candidate("a", usual_seconds=None)], {"a": 2.0}, ""),
        ([candidate("a", usual_seconds=1.9, deviation_seconds=1.0)], {"a": 2.0}, ""),
        ([candidate("a", usual_seconds=2.1)], {}, "waits for no answer; not for a (usually comes after the bound)"),
        ([candidate("a", missed=True)], {}, "not for a (has not answered since it was last waited for)"),
        # The wait ends before those that cost more than they bring.
        (
            [candidate("near", usual_seconds=0.1), candidate("far", usual_seconds=1.9, stake_tokens=10.0)],
            {"near": 0.1 + 4 * 0.05},
            "not for far (waiting costs the others more than its answer adds)",
        ),
    ],
)
def test_a_learner_is_awaited_as_long_as_it_usually_takes_and_some(
    candidates: list[Candidate], seconds: dict[str, float], reason: str
) -> None:
    decided = wait(*candidates)
    assert decided.deadlines == pytest.approx({learner: NOW + one for learner, one in seconds.items()})
    assert [decided.expectations[one.learner] is Expectation.AWAITED for one in candidates] == [
        one.learner in seconds for one in candidates
    ]
    assert reason in decided.reason


def test_nobody_is_waited_for_once_the_bound_is_reached() -> None:
    assert wait(candidate("a"), candidate("b", usual_seconds=None), bound_at=NOW).deadlines == {}


@pytest.mark.parametrize(
    ("learners", "tokens_per_second", "awaited"),
    [
        ("a", 1999.0, "a"),  # it must bring more than the wait costs
        ("a", 2001.0, ""),
        ("a", 3000.0, ""),
        ("ab", 3000.0, "ab"),  # what several bring together is held against one wait
    ],
)
def test_answers_are_weighed_against_what_the_wait_costs(learners: str, tokens_per_second: float, awaited: str) -> None:
    decided = wait(*map(candidate, learners), tokens_per_second=tokens_per_second)
    assert set(decided.deadlines) == set(awaited)


def test_ties_are_decided_by_name_whatever_the_order_of_candidates() -> None:
    candidates = [candidate(name) for name in "cab"]
    assert wait(*candidates) == wait(*reversed(candidates))


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
