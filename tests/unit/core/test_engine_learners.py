"""Which ids there can be, and what an engine does with what is no event."""

from typing import Any

import pytest

from diloco.core.actions import Admit, Note, Refuse
from diloco.core.events import LearnerJoined, LearnersPlanned, SnapshotAsked
from support.engine_script import Script, name, of, only, options


def refused(script: Script, learner: str) -> str:
    return only(script.do(LearnerJoined(learner, "process", (), 0, 0)), Refuse).reason


@pytest.mark.parametrize(
    ("number", "limits_told"),
    [
        ("100", True),
        ("123456789", True),
        ("1234567890", False),  # too long to be read
        ("9" * 5000, False),
        ("01", True),
        ("1_0", False),
        ("\N{ARABIC-INDIC DIGIT THREE}", False),
        ("\N{SUPERSCRIPT TWO}", False),
    ],
)
def test_a_refusal_tells_the_limits_where_the_index_is_a_number(number: str, *, limits_told: bool) -> None:
    reason = refused(Script(options(1)), f"here/pool/{number}")
    assert ("indices of here/pool are 0 to 99" in reason) is limits_told


def test_the_last_index_is_one_below_the_limit() -> None:
    script = Script(options(1))
    assert of(script.do(LearnerJoined(name(99), "process", (), 0, 0)), Admit)
    assert "indices of here/pool are 0 to 99" in refused(script, name(100))


def given(script: Script, index: int) -> float:
    return next(one.given_seconds for one in script.engine.view(script.now).learners if one.id == name(index))


def test_a_plan_that_is_told_again_changes_no_clock() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.wait(2.0)
    script.leave(1)
    for _ in range(2):
        script.wait(1.0)
        note = only(script.do(LearnersPlanned((name(0), name(1)))), Note)
        assert note.reason == "2 learner(s) are planned: 0 more, 0 fewer than before"
    assert [given(script, index) for index in (0, 1)] == [4.0, 4.0]


def test_one_that_is_in_when_it_is_planned_counts_from_its_join() -> None:
    script = Script(options(1))
    script.start(0, 3)
    script.wait(2.0)
    script.do(LearnersPlanned((name(0), name(3))))
    script.wait(1.0)
    assert given(script, 3) == 3.0


def test_a_learner_of_before_a_restart_that_is_planned_anew_counts_once_the_job_goes_on() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.wait(2.0)
    again = Script(options(1), epoch=2, saved=script.engine.snapshot(script.now))
    again.do(LearnersPlanned((name(0), name(1))))
    again.wait(3.0)
    assert [given(again, index) for index in (0, 1)] == [2.0, 2.0], "nobody has joined yet"
    again.start(0)
    again.wait(1.0)
    assert [given(again, index) for index in (0, 1)] == [3.0, 3.0]


def test_a_snapshot_is_given_of_a_job_that_is_over() -> None:
    script = Script(options(1, max_restarts=0))
    script.start(0)
    script.join(0, "again")
    assert script.engine.finished
    assert len(script.do(SnapshotAsked("a user"))) == 1


def test_what_is_no_event_is_an_error() -> None:
    nothing: Any = object()
    with pytest.raises(AssertionError):
        Script(options(1)).do(nothing)
