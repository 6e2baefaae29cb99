"""Each class of allotted time, caused by events of a learner: how its time is classified."""

import json
import math
from dataclasses import asdict
from typing import Any

import pytest

from diloco.core.actions import AskFragment, Evaluate, Finish, Merge
from diloco.core.events import Evaluated, LearnerAlive, LearnerLeft, LearnersPlanned, Merged
from diloco.core.time_class import TimeClass
from diloco.core.time_spent import TimeSpent
from tests.support.engine_script import Script, name, of, only, options


class Lives:
    """A script whose learners report how they spent their time: one fragment, so that its share is 1."""

    def __init__(self, learners: int = 1, **changes: Any) -> None:
        self.script = Script(options(learners, fragments=1, **changes))
        self.script.start(*range(learners))
        self.spent = dict.fromkeys(range(learners), TimeSpent())

    def live(self, passed: TimeSpent | float, *learners: int, steps: int = 1) -> None:
        """Let time pass; a number: time of training, with this many steps. Then connected learners report."""
        more = passed if isinstance(passed, TimeSpent) else TimeSpent(training=passed)
        self.script.wait(more.wall_seconds)
        for learner in learners:
            before, added = asdict(self.spent[learner]), asdict(more)
            self.spent[learner] = TimeSpent(**{kind: before[kind] + added[kind] for kind in before})
            if name(learner) in present(self.script):
                self.script.step(learner, steps, spent=self.spent[learner])
            else:
                self.script.steps[learner] += steps

    def push(self, *learners: int, **changes: Any) -> list[Merge]:
        return [merge for one in learners for merge in of(self.script.push(one, 0, **changes), Merge)]


def present(script: Script) -> list[str]:
    return [one.id for one in script.engine.view(script.now).learners if one.state in ("Training", "Stalled")]


def time_of(script: Script, index: int = 0) -> dict[str, float]:
    """Seconds by class, without those that are nothing; checked to add up to what was given."""
    view = script.engine.view(script.now)
    (learner,) = [one for one in view.learners if one.id == name(index)]
    assert all(seconds >= 0 for seconds in learner.time.values())
    assert math.fsum(learner.time.values()) == pytest.approx(learner.allotted_seconds)
    assert learner.merged is None or learner.merged == pytest.approx(
        learner.time[TimeClass.MERGED] / learner.allotted_seconds
    )
    return {one.value: round(seconds, 6) for one, seconds in learner.time.items() if seconds > 1e-9}


def test_merged_overwritten_and_pending() -> None:
    one = Lives()
    one.live(1.0, 0)
    (merge,) = one.push(0, steps=1)
    one.live(2.0, 0)
    one.script.merge_done(merge)
    one.script.applied(0, 0, 1, step=2)
    one.live(4.0, 0)
    assert time_of(one.script) == {"merged": 1, "overwritten": 2, "pending": 4}


def test_an_earlier_versions_learner_is_counted_by_its_latest_step() -> None:
    script = Script(options(1, fragments=1))
    script.start(0)
    script.wait(3.0)
    script.step(0, 2, seconds=1.25)
    script.merge_done(only(script.push(0, 0, steps=2), Merge))
    script.applied(0, 0, 1)
    assert time_of(script) == {"merged": 2.5, "unexplained": 0.5}


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("skipped", "skipped"),
        ("paused", "waiting"),
        ("copying", "copying"),
        ("looking", "between_steps"),
        ("evaluating", "evaluating"),
        ("checkpointing", "checkpointing"),
        ("loading", "loading"),
    ],
)
def test_time_without_training_is_what_the_learner_says(kind: str, shown: str) -> None:
    one = Lives()
    one.live(TimeSpent(**{"training": 1.0, kind: 3.0}), 0)
    assert time_of(one.script) == {"pending": 1, shown: 3}


def test_too_late_for_a_merge() -> None:
    two = Lives(2)
    two.live(1.0, 0, 1)
    two.push(0, steps=1)
    merge = only(two.script.wait(5.0), Merge)
    two.script.merge_done(merge)
    two.script.applied(1, 0, 1, step=1)
    assert time_of(two.script, 1) == {"late": 1, "pending": 5}


def test_an_outer_gradient_that_comes_after_the_members_are_frozen_is_late() -> None:
    two = Lives(2, grace_safety=0.0)
    two.live(1.0, 0, 1)
    (merge,) = two.push(0, steps=1)
    two.push(1, steps=1)
    two.script.merge_done(merge)
    two.script.applied(1, 0, 1, step=1)
    assert time_of(two.script, 1) == {"late": 1}


def test_measured_from_a_version_that_is_too_old() -> None:
    two = Lives(2, max_version_lag=0)
    two.live(1.0, 0, 1)
    (merge,) = [*two.push(0, 1, steps=1)]
    two.script.merge_done(merge)
    two.script.applied(0, 0, 1, step=1)
    two.live(2.0, 0, 1)
    two.push(1, steps=1, base_version=0)
    two.push(0, steps=1)
    two.script.merge_done(only(two.script.wait(5.0), Merge))
    two.script.applied(1, 0, 2, step=2)
    assert time_of(two.script, 1) == {"merged": 1, "outdated": 2, "pending": 5}


def test_cut_off_while_the_fragment_was_merged() -> None:
    two = Lives(2, max_version_lag=3)
    two.live(1.0, 0, 1)
    (merge,) = [*two.push(0, 1, steps=1)]
    two.script.merge_done(merge)
    two.script.applied(0, 0, 1, step=1)
    two.script.applied(1, 0, 1, step=1)
    two.script.leave(1)
    two.live(TimeSpent(training=6.0, paused=1.0), 0, 1, steps=3)
    assert time_of(two.script, 1) == {"merged": 1, "away": 7}
    two.push(0, steps=3)
    two.script.merge_done(two.script.all(Merge)[-1])
    two.script.join(1, versions=(1,), steps=4)
    two.script.ready(1)
    two.script.applied(1, 0, 2, step=4)
    two.live(2.0, 1)
    # It had trained all the time, so none of it was time away.
    assert time_of(two.script, 1) == {"merged": 1, "missed": 6, "waiting": 1, "pending": 2}


def test_a_merge_that_failed_made_its_members_work_unusable() -> None:
    one = Lives()
    one.live(1.0, 0)
    (merge,) = one.push(0, steps=1)
    one.script.do(Merged(merge.fragment, merge.version, "0" * 32, 0.01, failed=True))
    assert time_of(one.script) == {"unusable": 1}


def test_an_outer_gradient_that_cannot_be_sent_is_unusable() -> None:
    two = Lives(2)
    for _ in range(3):
        two.live(1.0, 0, 1)
    two.script.decline(1, 0)
    (merge,) = two.push(0, steps=3)
    two.script.merge_done(merge)
    two.script.applied(1, 0, 1, step=3)
    assert time_of(two.script, 1) == {"unusable": 3}


def test_who_had_nothing_to_bring_loses_what_it_makes_until_the_swap_in() -> None:
    two = Lives(2)
    two.live(1.0, 0)
    two.script.decline(1, 0)
    (merge,) = two.push(0, steps=1)
    two.live(2.0, 0, 1)
    two.script.merge_done(merge)
    two.script.applied(1, 0, 1, step=1)
    assert time_of(two.script, 1) == {"unexplained": 1, "overwritten": 2}


def test_a_process_that_ends_loses_what_it_had_not_brought() -> None:
    one = Lives()
    one.live(1.0, 0)
    (merge,) = one.push(0, steps=1)
    one.live(2.0, 0)
    one.script.leave(0)
    one.script.wait(4.0)
    assert time_of(one.script) == {"pending": 3, "away": 4}
    one.script.join(0, "another process")
    one.script.merge_done(merge)
    assert time_of(one.script) == {"merged": 1, "lost": 2, "away": 4}
    one.script.wait(3.0)
    assert time_of(one.script) == {"merged": 1, "lost": 2, "away": 4, "rejoining": 3}
    one.script.ready(0)
    one.spent[0] = TimeSpent(loading=5.0)
    one.live(1.0, 0)
    assert time_of(one.script) == {"merged": 1, "lost": 2, "away": 2, "rejoining": 5, "pending": 1}


def test_a_process_whose_place_is_taken_loses_what_it_had_pending() -> None:
    one = Lives()
    one.live(2.0, 0)
    one.script.join(0, "another process")
    assert time_of(one.script) == {"lost": 2}


def test_after_a_syncer_restart_unknown_time_is_lost_and_the_absence_free() -> None:
    one = Lives()
    one.live(1.0, 0)
    (merge,) = one.push(0, steps=1)
    one.script.merge_done(merge)
    one.script.applied(0, 0, 1, step=1)
    one.live(2.0, 0)
    saved = json.loads(json.dumps(one.script.engine.snapshot(one.script.now)))
    again = Script(options(1, fragments=1), epoch=2, saved=saved)
    again.wait(1000.0)
    assert time_of(again) == {"merged": 1, "lost": 2}
    # The same process comes back, after 500 s of training that were not part of its allotted time.
    again.join(0, steps=502)
    again.ready(0)
    again.applied(0, 0, 1, step=502)
    again.wait(4.0)
    again.step(0, spent=TimeSpent(training=507.0))
    time = time_of(again)
    assert sum(time.values()) == pytest.approx(7.0)
    assert time["lost"] == pytest.approx(6.0, abs=0.1)


def test_time_reported_before_a_syncer_restart_is_not_counted_again() -> None:
    one = Lives()
    one.live(TimeSpent(training=1.0, evaluating=2.0), 0)
    saved = json.loads(json.dumps(one.script.engine.snapshot(one.script.now)))
    again = Script(options(1, fragments=1), epoch=2, saved=saved)
    again.join(0, steps=1)
    again.ready(0)
    again.applied(0, 0, 0, step=1)
    again.wait(4.0)
    again.step(0, spent=TimeSpent(training=5.0, evaluating=2.0))
    assert time_of(again) == {"lost": 1, "evaluating": 2, "pending": 4}


def test_a_snapshot_from_before_accounts_were_kept_is_read() -> None:
    one = Lives()
    one.live(4.0, 0)
    saved = one.script.engine.snapshot(one.script.now)
    del saved["learners"][name(0)]["account"]
    saved["learners"][name(0)]["merged_seconds"] = 3.0
    assert time_of(Script(options(1, fragments=1), epoch=2, saved=saved)) == {"merged": 3, "unexplained": 1}


def test_a_learner_that_joins_late_is_not_charged_for_the_time_before() -> None:
    two = Lives(2)
    late = Lives(1)
    late.script.engine.step(LearnersPlanned((name(0), name(1))), late.script.now)
    late.live(50.0, 0)
    late.script.start(1)
    late.script.wait(2.0)
    assert time_of(late.script, 1) == {"pending": 2}
    assert time_of(two.script, 1) == {}


def test_a_learner_that_never_returns_is_away_and_one_scaled_away_is_not() -> None:
    two = Lives(2)
    two.live(1.0, 0, 1)
    two.script.leave(1)
    two.script.wait(3.0)
    assert time_of(two.script, 1) == {"pending": 1, "away": 3}
    two.script.do(LearnersPlanned((name(0),)))
    two.script.wait(3.0)
    view = two.script.engine.view(two.script.now)
    assert [one.id for one in view.learners] == [name(0)]
    # The job's time still includes the seconds of the learner that is no longer shown.
    assert (view.time[TimeClass.LOST], view.time[TimeClass.AWAY]) == pytest.approx((1.0, 3.0))
    assert math.fsum(view.time.values()) == pytest.approx(7.0 + 4.0)


def test_a_learner_that_was_given_up_has_lost_its_work_and_is_away() -> None:
    two = Lives(2, max_restarts=0)
    two.live(1.0, 0, 1)
    two.script.leave(1)
    two.script.wait(5.0)
    two.script.join(1, "another process")
    assert time_of(two.script, 1) == {"lost": 1, "away": 5}


def test_a_learner_that_makes_no_steps_is_unexplained_until_it_says_more() -> None:
    two = Lives(2)
    two.live(1.0, 0, 1)
    for _ in range(15):
        two.script.wait(1.0)
        two.script.step(0)
        two.script.do(LearnerAlive(name(1), two.script.incarnations[1]))
    assert time_of(two.script, 1) == {"pending": 1, "unexplained": 15}
    two.spent[1] = TimeSpent(training=1.0, paused=15.0)
    two.script.step(1, spent=two.spent[1])
    assert time_of(two.script, 1) == {"pending": 1, "waiting": 15}


def test_a_learner_at_an_evaluation_shows_it_before_it_reports() -> None:
    one = Lives()
    assert one.script.all(Evaluate)
    one.script.wait(2.0)
    assert time_of(one.script) == {"evaluating": 2}


def test_claims_beyond_the_time_there_was_are_not_believed() -> None:
    one = Lives()
    one.script.wait(2.0)
    one.script.step(0, spent=TimeSpent(training=1e300))
    assert time_of(one.script) == {"pending": 2}


def test_the_tail_at_the_end_is_in_hand_and_nothing_changes_after_it() -> None:
    two = Lives(2, budget_tokens=100)
    (evaluation,) = two.script.all(Evaluate)
    two.script.do(Evaluated(name(0), two.script.incarnations[0], evaluation.evaluation, 2.0, exact=True))
    two.live(1.0, 0, 1)
    (merge,) = [*two.push(0, 1, steps=1)]
    two.script.merge_done(merge)
    two.script.wait(2.0)
    final = two.script.all(Evaluate)[-1]
    two.script.do(Evaluated(name(0), two.script.incarnations[0], final.evaluation, 2.0, exact=True))
    assert two.script.all(Finish)
    ended = {"merged": 1, "pending": 2}
    assert time_of(two.script, 1) == ended
    two.script.wait(60.0)
    two.script.do(LearnerLeft(name(1), two.script.incarnations[1], clean=True))
    assert time_of(two.script, 1) == ended
    again = Script(options(2, fragments=1), epoch=2, saved=two.script.engine.snapshot(two.script.now))
    assert time_of(again, 1) == ended


def test_the_jobs_classes_are_the_sum_of_the_learners() -> None:
    two = Lives(2)
    two.live(TimeSpent(training=1.0, copying=0.5), 0, 1)
    two.live(2.0, 0)
    view = two.script.engine.view(two.script.now)
    for one, seconds in view.time.items():
        assert seconds == pytest.approx(sum(learner.time[one] for learner in view.learners))
    assert of(two.script.wait(0.0), AskFragment) == []
