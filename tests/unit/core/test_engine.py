"""How the engine handles every event of a job that is over, and what is not an event."""

from typing import Any

import pytest

from diloco.core.actions import Action, Checkpoint, Fence, Note
from diloco.core.events import LearnerAlive, LearnersPlanned, SnapshotAsked, TimerFired
from tests.support.engine_script import Script, name, of, options


def over() -> Script:
    """A job that allows no restart, and whose only learner has been restarted."""
    script = Script(options(1, max_restarts=0))
    script.start(0)
    script.join(0, "again")
    assert script.engine.finished
    return script


def test_a_snapshot_is_given_of_a_job_that_is_over() -> None:
    asked: list[Action] = [Checkpoint("a user")]
    assert over().do(SnapshotAsked("a user")) == asked


@pytest.mark.parametrize("event", [LearnersPlanned((name(0),)), TimerFired("lease"), TimerFired("round/0")])
def test_nothing_else_moves_a_job_that_is_over(event: LearnersPlanned | TimerFired) -> None:
    assert over().do(event) == []


def test_the_quorum_follows_once_when_a_learner_is_given_up() -> None:
    script = Script(options(3, quorum=3, max_restarts=0))
    script.start(0, 1, 2)

    def said(actions: list[Action]) -> list[str]:
        return [note.reason for note in of(actions, Note) if note.subject == "QuorumFollows"]

    actions = script.join(2, "another")
    assert of(actions, Fence), "the process before was still in"
    assert said(actions) == ["sync.quorum is 3, but only 2 learner(s) are left: these are the quorum"]
    assert said(script.do(LearnerAlive(name(0), script.incarnations[0]))) == []


def test_what_is_no_event_is_an_error() -> None:
    nothing: Any = object()
    with pytest.raises(AssertionError):
        Script(options(1)).do(nothing)
