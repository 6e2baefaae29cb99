"""What a job that is over still answers."""

import pytest

from diloco.core.engine.actions import Action, Checkpoint
from diloco.core.engine.events import LearnersPlanned, SnapshotAsked, TimerFired
from tests.support.engine_script import POOL, Script, name, started


def over() -> Script:
    """A job that allows no restart, and whose only learner has been restarted."""
    script = started(1, max_restarts=0)
    script.join(0, "again")
    assert script.engine.finished
    return script


def test_a_snapshot_is_given_of_a_job_that_is_over() -> None:
    asked: list[Action] = [Checkpoint("a user")]
    assert over().do(SnapshotAsked("a user")) == asked


@pytest.mark.parametrize("event", [LearnersPlanned((name(0),), (POOL,)), TimerFired("lease"), TimerFired("round/0")])
def test_nothing_else_moves_a_job_that_is_over(event: LearnersPlanned | TimerFired) -> None:
    assert over().do(event) == []
