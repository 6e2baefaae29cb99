"""Effects of rounds and sessions on the accounts of time, beyond the classes themselves (`test_allotted_time`)."""

import math

import pytest

from diloco.core.actions import Evaluate, Finish, Merge
from diloco.core.events import Evaluated, LearnersPlanned, StepReported
from diloco.core.options import EngineOptions
from diloco.core.time_spent import TimeSpent
from tests.support.engine_script import Script, name, of, only, options


def one_fragment(learners: int = 1, **changes: object) -> EngineOptions:
    """So that its share is 1."""
    return options(learners, fragments=1, **changes)


def started(learners: int = 1, **changes: object) -> Script:
    script = Script(one_fragment(learners, **changes))
    script.start(*range(learners))
    return script


def time_of(script: Script, index: int = 0) -> dict[str, float]:
    """A learner's seconds by class, without those that are nothing."""
    learners = {one.id: one for one in script.engine.view(script.now).learners}
    return {one.value: round(seconds, 6) for one, seconds in learners[name(index)].time.items() if seconds > 1e-9}


def legacy(script: Script, step: int, seconds: float, blocked: float) -> None:
    """A report as from learners that did not report how they spent their time."""
    script.do(StepReported(name(0), script.incarnations[0], step, 100 * step, seconds, blocked, 2.0, step))


def test_a_report_without_a_further_step_explains_time_as_well() -> None:
    script = started()
    script.wait(1.0)
    script.step(0, spent=TimeSpent(training=1.0))
    script.wait(2.0)
    script.step(0, 0, spent=TimeSpent(training=1.0, paused=2.0))
    assert time_of(script) == {"pending": 1, "waiting": 2}


def test_a_report_of_an_earlier_step_explains_nothing() -> None:
    script = started()
    script.wait(2.0)
    script.step(0, 2, spent=TimeSpent(training=2.0))
    script.wait(2.0)
    script.step(0, -1, spent=TimeSpent(training=3.0, paused=1.0))
    assert time_of(script) == {"pending": 2, "evaluating": 2}, "it was ordered to evaluate"
    script.step(0, 2, spent=TimeSpent(training=4.0))
    assert time_of(script) == {"pending": 4}


def test_an_earlier_versions_learner_is_counted_by_its_steps_and_its_waits() -> None:
    script = started()
    script.wait(4.0)
    legacy(script, 2, seconds=0.5, blocked=0.25)
    assert time_of(script) == {"pending": 1, "between_steps": 0.25, "unexplained": 2.75}
    legacy(script, 3, seconds=0.5, blocked=0.0)
    assert time_of(script) == {"pending": 1.5, "between_steps": 0.25, "unexplained": 2.25}
    legacy(script, 4, seconds=-9.0, blocked=-9.0)
    assert time_of(script) == {"pending": 1.5, "between_steps": 0.25, "unexplained": 2.25}


@pytest.mark.parametrize("base_version", [0, 1])  # one version behind is allowed
def test_what_is_dropped_though_it_is_not_too_old_is_late(base_version: int) -> None:
    script = started(2)
    for version in (1, 2):
        script.wait(1.0)
        for index in (0, 1):
            script.step(index, spent=TimeSpent(training=version))
        wrong = {} if version == 1 else {"attempt": 7, "base_version": base_version}
        script.push(1, 0, steps=1, **wrong)
        script.merge_done(only([*script.push(0, 0, steps=1), *script.wait(2.0)], Merge))
    script.applied(1, 0, 2, step=2)
    assert {kind: seconds for kind, seconds in time_of(script, 1).items() if kind != "pending"} == {
        "merged": 1,
        "late": 1,
        "unexplained": 2,
    }


def test_one_that_is_planned_and_has_never_come_has_no_account() -> None:
    script = Script(one_fragment(2))
    script.start(0)
    script.wait(1.0)
    script.step(0, spent=TimeSpent(training=1.0))
    script.merge_done(only(script.push(0, 0, steps=1), Merge))
    assert (time_of(script, 0), time_of(script, 1)) == ({"merged": 1}, {})


def test_who_was_back_too_late_to_be_asked_has_missed_the_merge() -> None:
    script = started(3)
    for index in range(3):
        script.applied(index, 0, 0)
    script.wait(1.0)
    for index in range(3):
        script.step(index, spent=TimeSpent(training=1.0))
    assert not of(script.push(0, 0, steps=1), Merge)
    script.leave(1)
    script.join(1, versions=(0,), steps=1)
    script.ready(1)
    script.merge_done(only(script.wait(2.0), Merge))
    for index in (1, 2):
        script.applied(index, 0, 1, step=1)
    assert [time_of(script, index) for index in (1, 2)] == [{"missed": 1, "pending": 2}, {"late": 1, "pending": 2}]


def test_who_has_left_when_the_members_are_frozen_has_missed_the_merge() -> None:
    script = started(2, grace_safety=0.0)
    script.wait(1.0)
    for index in (0, 1):
        script.step(index, spent=TimeSpent(training=1.0))
    script.leave(1)
    script.merge_done(only(script.push(0, 0), Merge))
    script.join(1, versions=(1,), steps=1)
    assert time_of(script, 1) == {"missed": 1}


def test_what_a_learner_has_in_hand_is_lost_once_it_has_left_for_good() -> None:
    script = started(2)
    script.wait(1.0)
    for index in (0, 1):
        script.step(index, spent=TimeSpent(training=1.0))
    script.do(LearnersPlanned((name(0),)))
    assert time_of(script, 1) == {"pending": 1}, "no longer planned, but in"
    script.leave(0, clean=True)
    assert time_of(script, 0) == {"lost": 1}
    script.leave(1)
    view = script.engine.view(script.now)
    assert {one.value: seconds for one, seconds in view.time.items() if seconds} == {"lost": 2}


@pytest.mark.parametrize("state", ["Loading", "Absent"])
def test_time_since_the_last_report_is_shown_as_what_the_learner_is_at(state: str) -> None:
    script = Script(one_fragment(2))
    script.start(0)
    script.join(1)
    if state == "Absent":
        script.leave(1)
    script.wait(3.0)
    assert time_of(script, 1) == ({"loading": 3} if state == "Loading" else {"away": 3})
    evaluates = only([action for _, action in script.log], Evaluate)
    assert evaluates.learner == name(0)
    assert time_of(script, 0) == {"evaluating": 3}


def test_at_the_end_whoever_is_away_has_lost_what_it_had_pending() -> None:
    script = started(3, budget_tokens=100)
    (first,) = script.all(Evaluate)
    script.do(Evaluated(first.learner, first.incarnation, first.evaluation, 2.0, exact=True))
    script.wait(1.0)
    for index in range(3):
        script.step(index, spent=TimeSpent(training=1.0))
    script.leave(2)
    merge = [one for index in (0, 1) for one in of(script.push(index, 0, steps=1), Merge)]
    script.merge_done(merge[0])
    script.wait(2.0)
    final = script.all(Evaluate)[-1]
    script.do(Evaluated(final.learner, final.incarnation, final.evaluation, 2.0, exact=True))
    assert script.all(Finish)
    ended = [time_of(script, index) for index in range(3)]
    assert ended[2] == {"lost": 1, "away": 2}
    given = [one.allotted_seconds for one in script.engine.view(script.now).learners]
    assert given == [3.0, 3.0, 3.0]
    script.wait(60.0)
    assert [time_of(script, index) for index in range(3)] == ended
    assert [one.allotted_seconds for one in script.engine.view(script.now).learners] == given
    assert math.fsum(script.engine.view(script.now).time.values()) == pytest.approx(9.0)
