"""The classes of allotted time add up, whatever happens in whatever order and whatever learners claim."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.actions import Merge
from diloco.core.events import LearnersPlanned, Merged
from diloco.core.time_class import TimeClass
from diloco.core.time_spent import TimeSpent
from tests.support.engine_script import Script, name, of, options

LEARNERS = 3
FRAGMENTS = 3
SECONDS = st.one_of(st.floats(0, 20), st.sampled_from([0.0, 1e308, math.inf, math.nan, -1.0]))
SPENT = st.builds(TimeSpent, *[SECONDS] * 8)
MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            ["step", "push", "old", "decline", "leave", "rejoin", "restart", "wait", "merge", "fail", "applied", "plan"]
        ),
        st.integers(0, LEARNERS - 1),
        st.integers(0, FRAGMENTS - 1),
        SPENT,
    ),
    max_size=100,
)
Move = tuple[str, int, int, TimeSpent]


def check(script: Script) -> None:
    """Every class is there and not negative, and they add up, for each learner and for the job."""
    view = script.engine.view(script.now)
    for learner in view.learners:
        assert set(learner.time) == set(TimeClass)
        assert all(0 <= seconds < math.inf for seconds in learner.time.values())
        assert math.fsum(learner.time.values()) == pytest.approx(learner.allotted_seconds, rel=1e-9, abs=1e-6)
    assert view.merged is None or 0 <= view.merged <= 1
    if view.merged is not None:
        allotted_seconds = math.fsum(view.time.values())
        assert math.fsum(seconds / allotted_seconds for seconds in view.time.values()) == pytest.approx(1.0, abs=1e-12)


def play(script: Script, moves: list[Move]) -> None:  # noqa: C901, PLR0912 - a table of moves
    """Make the possible moves, and check after each."""
    under_way: list[Merge] = []
    processes = 0
    for move, learner, number, spent in moves:
        before = len(script.log)
        match move:
            case "step":
                script.step(learner, number + 1, spent=spent)
            case "push" if (learner, number) in script.asks:
                script.push(learner, number, steps=number + 1)
            case "old" if (learner, number) in script.asks:
                script.push(learner, number, steps=7, base_version=max(0, script.asks[learner, number].version - 3))
            case "decline" if (learner, number) in script.asks:
                script.decline(learner, number)
            case "leave":
                script.leave(learner, clean=bool(number))
            case "rejoin":
                script.join(learner, versions=script.engine.view(script.now).versions)
                script.ready(learner)
            case "restart":
                processes += 1
                script.join(learner, f"again-{processes}")
                script.ready(learner)
            case "wait":
                script.wait(float(number * number))
            case "merge" | "fail" if under_way:
                merge = under_way.pop(number % len(under_way))
                script.do(Merged(merge.fragment, merge.version, "0" * 32, 0.01, failed=move == "fail"))
            case "applied":
                version = script.engine.view(script.now).versions[number]
                script.applied(learner, number, version, step=script.steps.get(learner, 0) + number)
            case "plan":
                script.do(LearnersPlanned(tuple(name(index) for index in range(number + 1))))
            case _:
                pass
        under_way += of([action for _, action in script.log[before:]], Merge)
        check(script)


@given(MOVES, st.integers(1, LEARNERS))
@settings(max_examples=200)
def test_the_classes_add_up_after_every_event(moves: list[Move], quorum: int) -> None:
    script = Script(options(LEARNERS, FRAGMENTS, quorum=quorum, shares=(0.5, 0.3, 0.2), max_restarts=5))
    script.start(*range(LEARNERS))
    play(script, moves)


@given(MOVES, MOVES)
@settings(max_examples=100)
def test_they_add_up_across_restarts_of_the_syncer(before: list[Move], after: list[Move]) -> None:
    chosen = options(LEARNERS, FRAGMENTS, shares=(0.5, 0.3, 0.2))
    script = Script(chosen)
    script.start(*range(LEARNERS))
    play(script, before)
    was = script.engine.view(script.now)
    again = Script(chosen, epoch=2, saved=json.loads(json.dumps(script.engine.snapshot(script.now))))
    check(again)
    for one, other in zip(was.learners, again.engine.view(again.now).learners, strict=False):
        assert one.id != other.id or other.time[TimeClass.MERGED] == one.time[TimeClass.MERGED]
    for index in range(LEARNERS):
        again.join(index, f"new-{index}")
        again.ready(index)
    play(again, after)


@given(MOVES)
@settings(max_examples=50)
def test_what_learners_claim_of_their_time_decides_nothing(moves: list[Move]) -> None:
    courses = []
    for claims in (True, False):
        script = Script(options(LEARNERS, FRAGMENTS))
        script.start(*range(LEARNERS))
        play(script, [move if claims else (*move[:3], TimeSpent()) for move in moves])
        courses.append([repr(action) for _, action in script.log])
    assert courses[0] == courses[1]
