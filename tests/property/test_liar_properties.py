"""Whatever one learner says: it weighs little more than an honest one, costs the others little, and ends nothing early.

The others are as fast as each other. The measure is a learner that says the truth about as many steps as they make, and
that answers at once.
"""

from functools import cache
from math import inf
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.liars import Ended, Lies, job, play

STEPS = 200
START_SECONDS = 600
"""The default of ``sync.startupSeconds``: a learner that has never answered has so long."""

lies = st.builds(
    Lies,
    times=st.sampled_from([0.01, 0.5, 1.0, 1.0, 25.0, 1000.0]),
    every_seconds=st.sampled_from([0.05, 0.5, 0.5, 3.0]),
    bursts=st.sampled_from([1, 1, 3, 20]),
    step_seconds=st.sampled_from([0.0, 0.5, 1e9]),
    tokens=st.sampled_from([0.0, 0.1, 1.0]),
    pushes=st.sampled_from(["claimed", "bound", "one"]),
    applies=st.sampled_from(["at once", "never", "later"]),
    declines=st.sampled_from([0, 0, 1, 2]),
    ignores=st.sampled_from([0, 0, 1, 2]),
    rejoins_every_seconds=st.sampled_from([inf, inf, 1.0, 7.0]),
    another_process=st.booleans(),
)


@cache
def played(said: Lies | None, *pools: int, quorum: int = 1) -> Ended:
    return play(job(STEPS, *pools, quorum=quorum), said)


@given(lies)
@example(Lies(times=25.0))
@example(Lies(times=25.0, pushes="bound", step_seconds=0.0))
@example(Lies(times=25.0, bursts=20))
@example(Lies(times=1000.0, step_seconds=0.0, rejoins_every_seconds=7.0, another_process=True))
@settings(max_examples=examples(20))
def test_one_that_says_anything_gains_and_costs_little(said: Lies) -> None:
    found, truth, without = played(said, 4), played(Lies(), 4), played(None, 4)
    assert found.weight <= 2 * 0.25
    assert found.weight <= 1.3 * truth.weight
    assert found.share_of_others >= truth.share_of_others - 0.07
    assert 0.93 * truth.seconds <= found.seconds <= 1.05 * without.seconds


@pytest.mark.parametrize(("pools", "weight"), [((2,), 0.8), ((2, 2), 0.5)])
def test_beside_one_other_of_its_pool_it_gains_more(pools: tuple[int, ...], weight: float) -> None:
    assert played(Lies(times=1000.0), *pools).weight <= weight


@pytest.mark.parametrize("times", [3.0, 25.0])
@pytest.mark.parametrize("answers", [{"ignores": 1}, {"declines": 1}, {"declines": 1, "applies": "later"}])
def test_one_that_is_never_merged_sets_no_pace(times: float, answers: dict[str, Any]) -> None:
    found, without = played(Lies(times=times, every_seconds=0.02, **answers), 3, 1), played(None, 3, 1)
    assert found.seconds <= 1.03 * without.seconds
    assert found.share_of_others >= without.share_of_others - 0.03


@pytest.mark.parametrize("times", [10.0, 25.0])
def test_one_that_answers_every_other_version_stops_nobody(times: float) -> None:
    found = played(Lies(times=times, every_seconds=0.02, ignores=2), 3, 1)
    assert found.seconds <= 1.2 * played(None, 3, 1).seconds


@pytest.mark.parametrize(
    "said",
    [
        Lies(ignores=1),
        Lies(declines=1),
        Lies(declines=1, applies="later"),
        Lies(ignores=1, rejoins_every_seconds=1.0),
        Lies(ignores=1, rejoins_every_seconds=1.0, another_process=True),
        Lies(ignores=1, times=0.0),
    ],
)
def test_of_a_quorum_of_all_those_that_answer_go_on(said: Lies) -> None:
    honest = played(Lies(), 4, quorum=4)
    assert played(said, 4, quorum=4).seconds <= 2 * honest.seconds + 1.2 * START_SECONDS
