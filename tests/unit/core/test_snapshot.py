"""A syncer resumes from its snapshot, whatever numbers the job has reached."""

import json
import math
from typing import Any

import pytest

from diloco.core.actions import Evaluate
from diloco.core.events import Evaluated, StepReported
from diloco.core.snapshot import LaterSnapshotError, SnapshotError, check, restore
from diloco.core.time_class import TimeClass
from diloco.core.time_spent import TimeSpent
from tests.support.engine_script import Script, name, options

ODD = (math.nan, math.inf, -math.inf)


def through_a_file(saved: dict[str, Any]) -> dict[str, Any]:
    """Write and read it as strict JSON, which has no numbers that are not finite."""
    read: dict[str, Any] = json.loads(json.dumps(saved, allow_nan=False))
    return read


def evaluated(loss: float) -> Script:
    """A job whose one learner reports this loss, in training and of the global model."""
    script = Script(options(1))
    script.start(0)
    order = script.all(Evaluate)[0]
    incarnation = script.incarnations[0]
    script.wait(1.0)
    script.do(StepReported(name(0), incarnation, 1, 100, 1.0, 0.0, loss, 1))
    script.do(Evaluated(name(0), incarnation, order.evaluation, loss, exact=True))
    return script


@pytest.mark.parametrize("loss", ODD)
def test_a_loss_that_is_no_number_is_kept_and_restored(loss: float) -> None:
    script = evaluated(loss)
    again = Script(options(1), epoch=2, saved=through_a_file(script.engine.snapshot(script.now)))
    view = again.engine.view(again.now)
    assert repr(view.evaluations[0].loss) == repr(view.learners[0].loss) == repr(loss)


def test_a_null_that_an_earlier_version_wrote_for_such_a_loss_is_read() -> None:
    script = evaluated(math.nan)
    saved = script.engine.snapshot(script.now)
    saved["evaluations"][0]["loss"] = saved["learners"][name(0)]["loss"] = None
    saved["learners"][name(0)]["blocked_seconds"] = None
    saved["learners"][name(0)]["account"]["spent"]["training"] = None
    view = Script(options(1), epoch=2, saved=saved).engine.view(0.0)
    assert math.isnan(view.evaluations[0].loss)
    assert view.learners[0].loss is None
    assert view.learners[0].blocked_seconds == 0.0


def test_times_whose_sum_leaves_the_range_are_kept_and_restored() -> None:
    script = Script(options(1))
    script.start(0)
    for step in (1, 2):
        script.wait(1.0)
        script.do(StepReported(name(0), script.incarnations[0], step, 100 * step, 1.7e308, 1.7e308, 2.0, step))
    saved = through_a_file(script.engine.snapshot(script.now))
    assert script.engine.view(script.now).learners[0].blocked_seconds == 2.0
    state = restore(options(1), 2, saved)
    assert state.learners[name(0)].account.spent.training == math.inf
    again = Script(options(1), epoch=2, saved=saved)
    again.start(0)
    again.wait(1.0)
    again.step(0)
    view = again.engine.view(again.now)
    assert math.fsum(view.time.values()) == pytest.approx(3.0)


def test_a_snapshot_of_a_later_version_is_told_from_one_that_is_spoilt() -> None:
    saved = Script(options(1)).engine.snapshot(0.0)
    check(options(1), saved)
    with pytest.raises(LaterSnapshotError, match="surprise"):
        check(options(1), saved | {"surprise": 1, "versions": "many"})
    with pytest.raises(SnapshotError) as spoilt:
        check(options(1), saved | {"versions": "many"})
    assert not isinstance(spoilt.value, LaterSnapshotError)


def test_time_of_rejoining_is_kept_where_an_earlier_version_reads_loading() -> None:
    script = Script(options(1))
    script.start(0)
    script.leave(0)
    script.wait(2.0)
    script.join(0, "another")
    script.wait(3.0)
    script.do(StepReported(name(0), script.incarnations[0], 1, 100, 1.0, 0.0, 2.0, 1, TimeSpent(loading=3.0)))
    saved = through_a_file(script.engine.snapshot(script.now))
    kept = saved["learners"][name(0)]["account"]
    assert kept["seconds"]["loading"] == pytest.approx(3.0)
    assert "rejoining" not in kept["seconds"]
    (learner,) = Script(options(1), epoch=2, saved=saved).engine.view(0.0).learners
    assert learner.time[TimeClass.REJOINING] == pytest.approx(3.0)
    assert learner.time[TimeClass.LOADING] == 0.0
