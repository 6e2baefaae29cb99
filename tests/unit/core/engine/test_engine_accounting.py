"""Each class of allotted time, caused by events of the engine (`test_time_account` has the account itself)."""

import math
from typing import Any

import pytest

from diloco.core.account.time_class import TimeClass
from diloco.core.account.time_spent import TimeSpent
from diloco.core.engine.actions import Evaluate, Finish, Merge
from diloco.core.engine.events import Merged
from tests.support.engine_script import Script, name, of, only, started


def begun(learners: int = 1, **changes: Any) -> Script:
    """Learners that train one fragment, so that its share is 1."""
    return started(learners, fragments=1, **changes)


def trained(learners: int = 1, **changes: Any) -> Script:
    """Learners that have trained one fragment for a second."""
    script = begun(learners, **changes)
    train(script, 1.0, *range(learners))
    return script


def train(script: Script, seconds: float, *learners: int, steps: int = 1) -> None:
    """Time passes, in which these learners make steps that they report."""
    script.wait(seconds)
    for index in learners:
        script.step(index, steps, seconds / steps)


def merged(script: Script, *learners: int, steps: int = 1) -> None:
    """These learners send what they have, and it is merged as soon as nobody is waited for; nobody receives it."""
    merges = [merge for index in learners for merge in of(script.push(index, 0, steps=steps), Merge)]
    script.merge_done(only([*merges, *(script.wait(5.0) if not merges else [])], Merge), applied=False)


def time_of(script: Script, index: int = 0) -> dict[str, float]:
    """A learner's seconds by class, without those that are nothing; checked to add up to what was given."""
    learner = script.learner(index)
    assert math.fsum(learner.time_seconds.values()) == pytest.approx(learner.allotted_seconds)
    return {one: round(seconds, 6) for one, seconds in learner.time_seconds.items() if seconds > 1e-9}


def test_merged_overwritten_and_pending() -> None:
    script = trained()
    merge = only(script.push(0, 0, steps=1), Merge)
    train(script, 2.0, 0, steps=2)
    script.merge_done(merge, applied=False)
    script.applied(0, 0, 1, step=3)
    train(script, 4.0, 0, steps=4)
    assert time_of(script) == {"merged": 1, "overwritten": 2, "pending": 4}


def test_too_late_for_a_merge() -> None:
    script = trained(2)
    merged(script, 0)
    script.applied(1, 0, 1, step=1)
    assert time_of(script, 1) == {"late": 1, "pending": 5}


def test_measured_from_a_version_that_is_too_old() -> None:
    script = trained(2, max_version_lag=0)
    merged(script, 0, 1)
    script.applied(0, 0, 1, step=1)
    train(script, 2.0, 0, 1, steps=2)
    script.push(1, 0, steps=2, base_version=0)
    merged(script, 0, steps=2)
    script.applied(1, 0, 2, step=3)
    assert time_of(script, 1) == {"merged": 1, "late": 2, "pending": 5}


@pytest.mark.parametrize("base_version", [0, 1])  # one version behind is allowed
def test_what_is_dropped_though_it_is_not_too_old_is_late(base_version: int) -> None:
    script = begun(2)
    for version in (1, 2):
        train(script, 1.0, 0, 1)
        wrong = {} if version == 1 else {"attempt": 7, "base_version": base_version}
        script.push(1, 0, steps=1, **wrong)
        script.merge_done(only([*script.push(0, 0, steps=1), *script.wait(2.0)], Merge))
    script.applied(1, 0, 2, step=2)
    assert {kind: seconds for kind, seconds in time_of(script, 1).items() if kind != "pending"} == {
        "merged": 1,
        "late": 1,
        "away": 2,
    }


def test_cut_off_while_the_fragment_was_merged() -> None:
    script = trained(2, max_version_lag=3)
    merged(script, 0, 1)
    script.applied(0, 0, 1, step=1)
    script.applied(1, 0, 1, step=1)
    script.leave(1)
    train(script, 7.0, 0, steps=3)
    assert time_of(script, 1) == {"merged": 1, "away": 7}
    merged(script, 0, steps=3)
    script.begin(1, versions=(1,), steps=7)
    script.applied(1, 0, 2, step=7)
    script.wait(2.0)
    script.step(1, 2, spent=TimeSpent(training=9.0, paused=1.0))
    # It had trained all the time, so none of it was time away.
    assert time_of(script, 1) == {"merged": 1, "lost": 6, "waiting": 1, "pending": 2}


def test_a_merge_that_failed_has_lost_its_members_work() -> None:
    script = trained()
    merge = only(script.push(0, 0, steps=1), Merge)
    script.do(Merged(merge.fragment, merge.version, "0" * 32, 0.01, failed=True))
    assert time_of(script) == {"lost": 1}


def test_an_outer_gradient_that_cannot_be_sent_is_lost() -> None:
    script = begun(2)
    for _ in range(3):
        train(script, 1.0, 0, 1)
    script.decline(1, 0)
    merged(script, 0, steps=3)
    script.applied(1, 0, 1, step=3)
    assert time_of(script, 1) == {"lost": 3}


def test_a_process_that_ends_loses_what_it_had_not_brought() -> None:
    script = trained()
    merge = only(script.push(0, 0, steps=1), Merge)
    train(script, 2.0, 0, steps=2)
    script.leave(0)
    script.wait(4.0)
    assert time_of(script) == {"pending": 3, "away": 4}
    script.join(0, "another process")
    script.merge_done(merge, applied=False)
    assert time_of(script) == {"merged": 1, "lost": 2, "away": 4}
    script.wait(3.0)
    assert time_of(script) == {"merged": 1, "lost": 2, "away": 7}
    script.ready(0)
    script.wait(1.0)
    script.step(0, spent=TimeSpent(training=1.0, loading=5.0))
    assert time_of(script) == {"merged": 1, "lost": 2, "away": 7, "pending": 1}


def test_after_a_syncer_restart_unknown_time_is_lost_and_the_absence_free() -> None:
    script = trained()
    merged(script, 0)
    script.applied(0, 0, 1, step=1)
    train(script, 2.0, 0, steps=2)
    again = script.restarted()
    again.wait(1000.0)
    assert time_of(again) == {"merged": 1, "lost": 2}
    # The same process comes back, after 500 s of training that were not part of its allotted time.
    again.begin(0, steps=503)
    again.applied(0, 0, 1, step=503)
    again.wait(4.0)
    again.step(0, 4, spent=TimeSpent(training=507.0))
    assert time_of(again) == {"merged": 1, "lost": 2, "pending": 4}


def test_time_reported_before_a_syncer_restart_is_not_counted_again() -> None:
    script = begun()
    script.wait(3.0)
    script.step(0, spent=TimeSpent(training=1.0, evaluating=2.0))
    again = script.restarted()
    again.begin(0, steps=1)
    again.applied(0, 0, 0, step=1)
    again.wait(4.0)
    again.step(0, 4, spent=TimeSpent(training=5.0, evaluating=2.0))
    assert time_of(again) == {"lost": 1, "overhead": 2, "pending": 4}


def test_a_learner_that_never_returns_is_away_and_one_scaled_away_is_not() -> None:
    script = trained(2)
    script.leave(1)
    script.wait(3.0)
    assert time_of(script, 1) == {"pending": 1, "away": 3}
    script.plan(0)
    script.wait(3.0)
    assert [one.id for one in script.view.learners] == [name(0)]
    # The job's time still includes the seconds of the learner that is no longer shown.
    time = script.view.time_seconds
    assert (time[TimeClass.LOST], time[TimeClass.AWAY]) == pytest.approx((1.0, 3.0))
    assert math.fsum(time.values()) == pytest.approx(7.0 + 4.0)


def test_a_learner_that_was_given_up_has_lost_its_work_and_is_away() -> None:
    script = trained(2, max_restarts=0)
    script.leave(1)
    script.wait(5.0)
    script.join(1, "another process")
    assert time_of(script, 1) == {"lost": 1, "away": 5}


def test_a_learner_that_makes_no_steps_is_away_until_it_says_more() -> None:
    script = trained(2)
    for _ in range(15):
        train(script, 1.0, 0)
        script.alive(1)
    assert time_of(script, 1) == {"pending": 1, "away": 15}
    script.step(1, spent=TimeSpent(training=1.0, paused=15.0))
    assert time_of(script, 1) == {"pending": 1, "waiting": 15}


def test_a_report_explains_time_unless_it_is_of_an_earlier_step() -> None:
    script = begun()
    train(script, 2.0, 0, steps=2)
    script.wait(2.0)
    script.step(0, -1, spent=TimeSpent(training=3.0, paused=1.0))
    assert time_of(script) == {"pending": 2, "overhead": 2}, "it was ordered to evaluate"
    script.step(0, 1, spent=TimeSpent(training=2.0, paused=2.0))
    assert time_of(script) == {"pending": 2, "waiting": 2}, "no further step is needed"


def test_one_that_is_planned_and_has_never_come_has_no_account() -> None:
    script = begun()
    script.plan(0, 1)
    train(script, 1.0, 0)
    merged(script, 0)
    assert (time_of(script, 0), time_of(script, 1)) == ({"merged": 1}, {})


def test_who_was_back_too_late_to_be_asked_has_missed_the_merge() -> None:
    script = begun(3)
    for index in range(3):
        script.applied(index, 0, 0)
    train(script, 1.0, 0, 1, 2)
    assert not of(script.push(0, 0, steps=1), Merge)
    script.rejoin(1, versions=(0,), steps=1)
    script.merge_done(only(script.wait(2.0), Merge))
    for index in (1, 2):
        script.applied(index, 0, 1, step=1)
    assert [time_of(script, index) for index in (1, 2)] == [{"lost": 1, "pending": 2}, {"late": 1, "pending": 2}]


def test_who_has_left_when_the_members_are_frozen_has_missed_the_merge() -> None:
    script = trained(2, grace_safety=0.0)
    script.leave(1)
    merged(script, 0)
    script.join(1, versions=(1,), steps=1)
    assert time_of(script, 1) == {"lost": 1}


def test_what_a_learner_has_in_hand_is_lost_once_it_has_left_for_good() -> None:
    script = trained(2)
    script.plan(0)
    assert time_of(script, 1) == {"pending": 1}, "no longer planned, but in"
    script.leave(0, clean=True)
    assert time_of(script, 0) == {"lost": 1}
    script.leave(1)
    assert {one: seconds for one, seconds in script.view.time_seconds.items() if seconds} == {"lost": 2}


@pytest.mark.parametrize("state", ["Loading", "Absent"])
def test_time_since_the_last_report_is_shown_as_what_the_learner_is_at(state: str) -> None:
    script = begun()
    script.join(1)
    if state == "Absent":
        script.plan(0, 1)
        script.leave(1)
    script.wait(3.0)
    assert time_of(script, 1) == {"away": 3}
    assert only(script.all(Evaluate), Evaluate).learner == name(0)
    assert time_of(script, 0) == {"overhead": 3}


def test_what_a_learner_that_is_away_had_pending_is_lost_at_the_end() -> None:
    script = begun(3, budget_tokens=100)
    script.evaluated()
    train(script, 1.0, 0, 1, 2)
    script.leave(2)
    merged(script, 0, 1)
    script.wait(2.0)
    script.evaluated()
    script.evaluated()
    assert script.all(Finish)
    ended = [time_of(script, index) for index in range(3)]
    assert ended[1:] == [{"merged": 1, "pending": 2}, {"lost": 1, "away": 2}]
    script.wait(60.0)
    script.leave(1, clean=True)
    for after in (script, script.restarted()):
        assert [time_of(after, index) for index in range(3)] == ended
        assert [one.allotted_seconds for one in after.view.learners] == [3.0, 3.0, 3.0]
