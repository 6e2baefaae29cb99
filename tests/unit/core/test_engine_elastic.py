"""Elastic pools: learners that do not come, or go, cost nothing while the pool has its minimum."""

import json
from typing import Any

import pytest

from diloco.core.actions import Note
from diloco.core.events import LearnersPlanned, PoolMinimum
from diloco.core.time_class import TimeClass
from tests.support.engine_script import Script, name, only, options

POOL = "here/pool"


def elastic(minimum: int, learners: int = 5, **changes: Any) -> Script:
    return Script(options(learners, pool_minimums=(PoolMinimum(POOL, minimum),), **changes))


def plan(script: Script, learners: int, *minimum: int) -> None:
    script.do(LearnersPlanned(tuple(map(name, range(learners))), tuple(PoolMinimum(POOL, one) for one in minimum)))


def given(script: Script, *indices: int) -> list[float]:
    by_id = {learner.id: learner.allotted_seconds for learner in script.engine.view(script.now).learners}
    return [by_id[name(index)] for index in indices]


def test_learners_that_never_came_cost_nothing_and_are_shown() -> None:
    script = elastic(2)
    script.start(1, 4)
    script.wait(3.0)
    view = script.engine.view(script.now)
    assert [learner.id for learner in view.learners] == [name(index) for index in range(5)]
    assert given(script, 0, 1, 2, 3, 4) == [0.0, 3.0, 0.0, 0.0, 3.0]
    assert view.merged is not None


@pytest.mark.parametrize("clean", [True, False])
def test_a_learner_that_the_pool_can_do_without_is_not_counted_down(clean: bool) -> None:
    script = elastic(2)
    script.start(0, 1, 2)
    script.wait(3.0)
    script.leave(1, clean=clean)
    script.wait(4.0)
    assert given(script, 0, 1, 2) == [7.0, 3.0, 7.0]
    script.join(1, "on another node")
    script.wait(1.0)
    assert given(script, 0, 1, 2) == [8.0, 4.0, 8.0]


def test_one_that_falls_silent_counts_until_its_lease_ends_and_no_longer() -> None:
    script = elastic(1, 2)
    script.start(0, 1)
    script.step(1)
    for _ in range(30):
        script.step(0)
        script.wait(1.0)
    assert given(script, 0, 1) == [30.0, 10.0]


def test_below_the_minimum_the_learner_that_left_last_counts_as_away() -> None:
    script = elastic(2)
    script.start(0, 1, 2)
    script.leave(0)
    script.wait(1.0)
    script.leave(2)
    script.wait(2.0)
    assert given(script, 0, 1, 2) == [0.0, 3.0, 3.0]
    # Another one comes in its place: the pool has its minimum again.
    script.start(4)
    script.wait(5.0)
    assert given(script, 0, 1, 2, 4) == [0.0, 8.0, 3.0, 5.0]


def test_what_a_vanished_learner_had_not_sent_is_lost_and_not_pending() -> None:
    script = elastic(1, 2)
    script.start(0, 1)
    script.wait(4.0)
    script.step(1, count=2)
    script.leave(1)
    (gone,) = [one for one in script.engine.view(script.now).learners if one.id == name(1)]
    assert gone.time[TimeClass.LOST] == 2.0
    assert gone.time[TimeClass.PENDING] == 0.0


def test_the_minimum_changes_while_the_job_runs() -> None:
    script = elastic(1, 3)
    script.start(0, 1, 2)
    script.leave(1)
    script.leave(2)
    script.wait(1.0)
    assert given(script, 0, 1, 2) == [1.0, 0.0, 0.0]
    note = only(script.do(LearnersPlanned(tuple(map(name, range(3))), (PoolMinimum(POOL, 2),))), Note)
    assert note.reason == "3 learner(s) are planned: 0 more, 0 fewer than before; at least 2 of here/pool"
    script.wait(1.0)
    assert sorted(given(script, 0, 1, 2)) == [0.0, 1.0, 2.0]
    plan(script, 3)
    script.wait(1.0)
    assert sorted(given(script, 0, 1, 2)) == [1.0, 2.0, 3.0]
    plan(script, 3, 1)
    script.wait(1.0)
    assert sorted(given(script, 0, 1, 2)) == [1.0, 2.0, 4.0]


def test_after_a_restart_of_the_syncer_only_the_minimum_is_awaited() -> None:
    script = elastic(2, 4)
    script.start(0, 1, 2, 3)
    script.wait(1.0)
    saved = json.loads(json.dumps(script.engine.snapshot(script.now)))
    again = Script(script.options, epoch=2, saved=saved)
    again.wait(5.0)
    assert given(again, 0, 1, 2, 3) == [1.0, 1.0, 1.0, 1.0]
    again.join(3, "after the syncer")
    again.wait(2.0)
    assert sorted(given(again, 0, 1, 2, 3)) == [1.0, 1.0, 3.0, 3.0]
    again.join(2, "after it")
    again.wait(1.0)
    assert sum(given(again, 0, 1, 2, 3)) == 10.0


def test_an_unplanned_learner_that_leaves_passes_its_place_on() -> None:
    script = elastic(2)
    script.start(0, 1, 4)
    script.leave(0)
    plan(script, 3, 2)
    script.wait(1.0)
    assert given(script, 0, 1, 4) == [0.0, 1.0, 1.0]
    script.leave(4)
    script.wait(1.0)
    assert given(script, 0, 1) == [1.0, 2.0]


def test_an_absent_learner_that_is_no_longer_planned_is_not_missed() -> None:
    script = elastic(1)
    script.start(0, 4)
    script.leave(4)
    script.leave(0)
    plan(script, 3, 2)
    script.wait(1.0)
    assert sum(script.engine.view(script.now).time.values()) == 1.0


def test_a_learner_given_up_counts_only_below_the_minimum() -> None:
    script = elastic(2, 3, max_restarts=0)
    script.start(0, 1, 2)
    script.leave(0)
    script.join(0, "again")
    script.wait(2.0)
    assert given(script, 0, 1, 2) == [0.0, 2.0, 2.0]
    script.leave(1)
    script.wait(3.0)
    assert sum(given(script, 0, 1, 2)) == 2.0 + 5.0 + 3.0


def test_nothing_counts_after_the_end_whoever_leaves() -> None:
    script = elastic(2, 2, max_restarts=0, minimum_learners=2)
    script.start(0, 1)
    script.leave(0)
    script.join(0, "again")
    assert script.engine.view(script.now).finished
    script.leave(1)
    before = script.engine.view(script.now).time
    script.wait(60.0)
    assert script.engine.view(script.now).time == before
