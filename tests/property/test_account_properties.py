"""The classes of allotted time add up, whatever happens in whatever order and whatever learners claim."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.account.time_class import TimeClass
from diloco.core.account.time_spent import TimeSpent
from tests.support.engine_moves import LEARNERS, Move, moves, play
from tests.support.engine_script import Script, started
from tests.support.examples import examples

SECONDS = st.one_of(st.floats(0, 20), st.sampled_from([0.0, 1e308, math.inf, math.nan, -1.0]))
MOVES = moves("old", "make", "fail", "applied", "plan", size=100, spent=st.builds(TimeSpent, *[SECONDS] * 8))
SHARES = (0.4, 0.3, 0.2, 0.1)


def check(script: Script) -> None:
    """Every class is there and not negative, and they add up, for each learner and for the job."""
    view = script.view
    for learner in view.learners:
        assert set(learner.time_seconds) == set(TimeClass)
        assert all(0 <= seconds < math.inf for seconds in learner.time_seconds.values())
        assert math.fsum(learner.time_seconds.values()) == pytest.approx(learner.allotted_seconds, rel=1e-9, abs=1e-6)
    assert view.merged is None or 0 <= view.merged <= 1
    if view.merged is not None:
        time, allotted_seconds = view.time_seconds.values(), math.fsum(view.time_seconds.values())
        assert math.fsum(seconds / allotted_seconds for seconds in time) == pytest.approx(1.0, abs=1e-12)


@given(MOVES, st.integers(1, LEARNERS))
@settings(max_examples=examples(200))
def test_the_classes_add_up_after_every_event(chosen: list[Move], quorum: int) -> None:
    script = started(LEARNERS, quorum=quorum, shares=SHARES, max_restarts=5)
    play(script, chosen, check)


@given(MOVES, MOVES)
@settings(max_examples=examples(100))
def test_they_add_up_across_restarts_of_the_syncer(before: list[Move], after: list[Move]) -> None:
    script = started(LEARNERS, shares=SHARES)
    play(script, before, check)
    was = script.view
    again = script.restarted()
    check(again)
    for one, other in zip(was.learners, again.view.learners, strict=False):
        merged = pytest.approx(one.time_seconds[TimeClass.MERGED])
        assert one.id != other.id or other.time_seconds[TimeClass.MERGED] == merged
    for index in range(LEARNERS):
        again.join(index, f"new-{index}")
        again.ready(index)
    play(again, after, check)


@given(MOVES)
@settings(max_examples=examples(50))
def test_what_learners_claim_of_their_time_decides_nothing(chosen: list[Move]) -> None:
    courses = []
    for claims in (True, False):
        script = started(LEARNERS)
        play(script, [move if claims else replace(move, spent=TimeSpent()) for move in chosen])
        courses.append([repr(action) for _, action in script.log])
    assert courses[0] == courses[1]
