"""How a round that has its quorum ends: which learners it waits for, and until when exactly."""

from typing import Any

import pytest

from diloco.core.actions import Action, AskFragment, Merge, Note, SetTimer
from diloco.core.averages import SizedSpread
from diloco.core.options import Rules
from tests.support.engine_script import Script, name, of, only, options

MOST = 1000.0
"""Seconds that a wait may take in a test."""


def launched(learners: int, *ready: int, **changes: Any) -> Script:
    """The first fragment is requested at second 1000; steps take a second, and these learners have made one."""
    script = Script(options(learners, **changes))
    script.start(*range(learners))
    for index in ready:
        script.step(index)
    return script


def takes(script: Script, index: int, seconds: float) -> None:
    """Set the time that a learner usually takes to answer."""
    script.engine._state.learners[name(index)].answer_seconds = SizedSpread(seconds, 0.0)


def members(actions: list[Action]) -> list[list[str]]:
    return [[member.learner for member in merge.members] for merge in of(actions, Merge)]


def closes_after(script: Script, actions: list[Action]) -> float:
    """Seconds until the round closes if no other learner answers."""
    began, seen = script.now, len(script.log) - len(actions)
    script.wait(MOST)
    return next(at for at, action in script.log[seen:] if isinstance(action, Merge)) - began


class TestTheFirstRules:
    @pytest.mark.parametrize(("safety", "seconds"), [(0.0, 0.0), (0.25, 0.5), (0.5, 1.0)])
    def test_the_grace_window_is_all_that_is_waited(self, safety: float, seconds: float) -> None:
        script = launched(2, 0, rules=Rules.ARRIVED, grace_safety=safety)
        actions = script.push(0, 0)
        assert members(actions) == ([] if seconds else [[name(0)]])
        assert closes_after(script, actions) == seconds

    def test_an_answer_within_the_grace_window_does_not_end_it(self) -> None:
        script = launched(3, 0, rules=Rules.ARRIVED)
        script.push(0, 0)
        script.wait(0.5)
        assert members(script.push(1, 0)) == []
        assert members(script.wait(0.4)) == []
        assert members(script.wait(0.1)) == [[name(0), name(1)]]


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
    ("ready", "seconds", "closes"),
    [
        ((0, 1), 1.0, 1.0),
        ((0, 1), 1.01, 0.0),
        ((0,), 1.01, 1.0),  # it may become ready
    ],
)
def test_the_grace_window_is_kept_for_who_may_answer_in_it(
    ready: tuple[int, ...], seconds: float, closes: float
) -> None:
    script = launched(2, *ready)
    takes(script, 1, seconds)
    assert closes_after(script, script.push(0, 0)) == closes


def test_the_grace_window_is_kept_if_one_of_several_may_answer_in_it() -> None:
    script = launched(3, 0, 1)
    takes(script, 1, 1.01)
    assert closes_after(script, script.push(0, 0)) == 1.0


def test_an_answer_that_does_not_change_until_when_is_waited_sets_no_timer() -> None:
    script = launched(3, 0, 1, 2, grace_safety=0.0)
    takes(script, 1, 0.1)
    takes(script, 2, 0.05)
    assert of(script.push(0, 0), SetTimer)
    assert script.push(2, 0) == []


def test_one_that_declined_and_has_work_is_asked_again_once() -> None:
    script = launched(3, 0, 1, 2, quorum=2)
    script.decline(1, 0)
    assert only(script.push(0, 0), AskFragment).attempt == 2
    assert not of(script.leave(2), AskFragment)
    assert members(script.push(1, 0)) == [[name(0), name(1)]]


def test_one_that_was_never_measured_is_waited_for_until_the_bound() -> None:
    script = Script(options(2, grace_safety=0.0))
    script.start(0, 1)
    script.step(0, seconds=2.0)
    script.step(1, 8, seconds=2.0)
    assert closes_after(script, script.push(0, 0)) == 4.0  # two steps


def test_whoever_is_excluded_is_told_why() -> None:
    script = launched(4, 0, 2)
    script.decline(1, 0)
    script.push(0, 0)
    script.leave(3)
    script.join(3, versions=(0, 0, 0, 0))
    script.ready(3)  # the round has its quorum, so it sends no more requests
    notes = [note for note in of(script.wait(1.0), Note) if note.subject == "LearnerExcluded"]
    late = "its outer gradient did not arrive in time"
    assert [(note.learner, note.reason) for note in notes] == [
        (name(1), "it had made no step"),
        (name(2), late),
        (name(3), late),
    ]
    measured = [record.answer_seconds.mean for record in script.engine._state.ordered_learners]
    assert measured == [0.0, None, 2.0, None]
