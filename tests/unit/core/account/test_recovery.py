"""How long a lost learner takes until its work is merged again, by parts."""

import pytest

from diloco.core.account.recovery import BOUNDS, NONE_YET, PARTS, with_recovery
from diloco.core.engine.actions import AskFragment, Merge
from diloco.spec.status.engine import RecoveryStatus
from tests.support.engine_script import Script, name, of, only, started

LONG = {"lost_seconds": 0.0, "down": 2.0, "loading": 0.5, "stepping": 20_000.0, "merging": 1.0}


def trained(learners: int = 2) -> Script:
    """Learners that have made a step each, in a job of one fragment."""
    return started(learners, fragments=1, max_staleness_steps=100)


def merge_with(script: Script, index: int) -> None:
    """A learner makes a step, and its outer gradient is merged."""
    script.step(index)
    merges = of(script.push(index, 0, steps=1), Merge)
    if not merges:
        merges = of(script.wait(60.0), Merge)
    script.merge_done(merges[0])


def test_a_recovery_has_its_parts() -> None:
    script = trained(1)
    merge_with(script, 0)
    script.wait(5.0)
    before = script.view.elapsed_seconds
    script.leave(0)
    script.wait(7.0)
    script.join(0, "another")
    script.wait(3.0)
    script.ready(0)
    script.wait(2.0)
    script.step(0)
    script.wait(4.0)
    script.merge_done(only(script.push(0, 0, steps=1), Merge))
    recoveries = script.engine.recoveries
    assert recoveries.count == 1
    (one,) = recoveries.latest
    assert (one.learner, one.restarted) == (name(0), True)
    assert (one.down, one.loading, one.stepping, one.merging) == pytest.approx((7.0, 3.0, 2.0, 4.0))
    assert one.lost_seconds == pytest.approx(before)
    assert one.seconds == pytest.approx(16.0)
    assert script.view.recoveries == recoveries


def test_a_learner_that_is_lost_again_on_the_way_has_one_recovery() -> None:
    script = trained(1)
    merge_with(script, 0)
    script.leave(0)
    script.wait(2.0)
    script.begin(0, "second")
    script.wait(1.0)
    script.leave(0)
    script.wait(4.0)
    script.begin(0, "third")
    merge_with(script, 0)
    (one,) = script.engine.recoveries.latest
    assert one.down == pytest.approx(7.0)


def test_work_of_the_lost_process_that_is_merged_later_ends_no_recovery() -> None:
    script = trained(1)
    script.step(0)
    merge = only(script.push(0, 0, steps=1), Merge)
    script.leave(0)
    script.wait(1.0)
    script.begin(0, "another")
    script.merge_done(merge, applied=False)
    assert script.engine.recoveries.count == 0


def test_the_same_process_that_returns_has_recovered_too() -> None:
    script = trained(1)
    merge_with(script, 0)
    version = script.engine.versions[0]
    script.leave(0)
    script.wait(5.0)
    script.begin(0, versions=(version,))
    script.step(0)
    assert script.all(AskFragment)
    merge_with(script, 0)
    (one,) = script.engine.recoveries.latest
    assert not one.restarted
    assert one.down == pytest.approx(5.0)


def test_a_process_that_is_replaced_while_it_has_a_session_is_lost() -> None:
    script = trained(1)
    merge_with(script, 0)
    script.wait(2.0)
    script.begin(0, "another")
    merge_with(script, 0)
    (one,) = script.engine.recoveries.latest
    assert one.restarted


def test_a_learner_that_was_scaled_away_does_not_recover() -> None:
    script = trained(2)
    merge_with(script, 1)
    script.plan(0)
    script.leave(1, clean=True)
    script.wait(50.0)
    script.plan(0, 1)
    script.begin(1, "another")
    merge_with(script, 1)
    assert script.engine.recoveries.count == 0


def test_a_silent_learner_is_lost_from_its_last_message_on() -> None:
    script = trained(1)
    merge_with(script, 0)
    script.wait(25.0)  # longer than its lease
    script.begin(0, "another")
    merge_with(script, 0)
    (one,) = script.engine.recoveries.latest
    assert one.down == pytest.approx(25.0)


def test_histograms_count_all_and_the_list_only_the_latest() -> None:
    recoveries = NONE_YET
    for index in range(300):
        recoveries = with_recovery(recoveries, RecoveryStatus(f"a/b/{index}", restarted=True, **LONG))
    assert (recoveries.count, len(recoveries.latest), recoveries.latest[-1].learner) == (300, 64, "a/b/299")
    parts = {one.part: one for one in recoveries.parts}
    assert tuple(parts) == PARTS
    assert parts["stepping"].counts == (*[0] * len(BOUNDS), 300)
    assert (parts["merging"].counts[0], parts["down"].counts[1]) == (300, 300)
    assert parts["down"].total_seconds == pytest.approx(600.0)
