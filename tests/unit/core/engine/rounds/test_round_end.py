"""How a round that has its quorum ends: which learners it waits for, and until when exactly."""

import pytest

from diloco.core.engine.actions import Action, Merge, Note, SetTimer
from diloco.core.engine.rounds.averages import SizedSpread
from tests.support.engine_script import Script, launched, members, name, of, only, started

MOST = 1000.0
"""Seconds that a wait may take in a test."""


def takes(script: Script, index: int, seconds: float) -> None:
    """Set the time that a learner usually takes to answer."""
    script.state.learners[name(index)].answer_seconds = SizedSpread(seconds, 0.0)


def closes_after(script: Script, actions: list[Action]) -> float:
    """Seconds until the round closes if no other learner answers."""
    began, seen = script.now, len(script.log) - len(actions)
    script.wait(MOST)
    return next(at for at, action in script.log[seen:] if isinstance(action, Merge)) - began


@pytest.mark.parametrize(("seconds", "waits"), [(0.499, True), (0.501, False)])
def test_an_answer_is_waited_for_while_it_brings_more_than_that_costs(seconds: float, *, waits: bool) -> None:
    script = launched(2, 0, 1, fragments=1, grace_safety=0.0)
    takes(script, 1, 0.01)
    script.push(0, 0)
    script.merge_done(only(script.push(1, 0), Merge))
    # Its answer adds the 100 tokens since then; waiting costs 200 a second.
    script.step(0)
    script.step(1)
    takes(script, 1, seconds)
    assert members(script.push(0, 0)) == ([] if waits else [[name(0)]])


@pytest.mark.parametrize(
    ("learners", "ready", "seconds", "closes"),
    [
        (2, (0, 1), 1.0, 1.0),
        (2, (0, 1), 1.01, 0.0),
        (2, (0,), 1.01, 1.0),  # it may become ready
        (3, (0, 1), 1.01, 1.0),  # another one may
    ],
)
def test_the_grace_window_is_kept_for_who_may_answer_in_it(
    learners: int, ready: tuple[int, ...], seconds: float, closes: float
) -> None:
    script = launched(learners, *ready)
    takes(script, 1, seconds)
    assert closes_after(script, script.push(0, 0)) == closes


def test_an_answer_that_does_not_change_until_when_is_waited_sets_no_timer() -> None:
    script = launched(3, 0, 1, 2, grace_safety=0.0)
    takes(script, 1, 0.1)
    takes(script, 2, 0.05)
    assert of(script.push(0, 0), SetTimer)
    assert script.push(2, 0) == []


def test_one_that_was_never_measured_is_waited_for_until_the_bound() -> None:
    script = started(2, grace_safety=0.0)
    script.step(0, seconds=2.0)
    script.step(1, 8, seconds=2.0)
    assert closes_after(script, script.push(0, 0)) == 4.0  # two steps


def test_whoever_is_excluded_is_told_why() -> None:
    script = launched(4, 0, 2)
    script.decline(1, 0)
    script.push(0, 0)
    script.rejoin(3, versions=(0, 0, 0, 0))  # the round has its quorum, so it sends no more requests
    notes = [note for note in of(script.wait(1.0), Note) if note.kind == "LearnerExcluded"]
    late = "its outer gradient did not arrive in time"
    assert [(note.learner, note.reason) for note in notes] == [
        (name(1), "it had made no step"),
        (name(2), late),
        (name(3), late),
    ]
    measured = [record.answer_seconds.mean for record in script.state.ordered_learners]
    assert measured == [0.0, None, 2.0, None]
