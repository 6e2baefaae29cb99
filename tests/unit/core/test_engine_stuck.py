"""Which learners are found stuck, and everything that must not look like it."""

from typing import Any

import pytest

from diloco.core.actions import Admit, Evaluate, Fence, Refusal
from diloco.core.events import Evaluated, LearnerAlive, LearnerJoined, StepReported
from diloco.core.leases import STUCK_STEPS
from diloco.core.options import Rules
from tests.support.engine_script import Script, name, of, only, options

STUCK_SECONDS = 100.0
LEASE_SECONDS = 10.0


def training(*, heals: bool = True, learners: int = 2, first_step: bool = True, **changes: Any) -> Script:
    """Learners that have made a step of 1 s each; nobody evaluates."""
    script = Script(options(learners, **({"stuck_seconds": STUCK_SECONDS} | changes)))
    for index in range(learners):
        join(script, index, heals=heals)
        script.ready(index)
    for order in script.all(Evaluate):
        script.do(Evaluated(order.learner, order.incarnation, order.evaluation, 2.0, exact=True))
    for index in range(learners if first_step else 0):
        script.step(index)
    return script


def join(script: Script, index: int, instance: str = "", *, heals: bool = True) -> None:
    actions = script.do(LearnerJoined(name(index), instance or f"process-{index}", (), 0, 0, heals))
    script.incarnations[index] = only(actions, Admit).incarnation
    script.steps.setdefault(index, 0)


def beat(script: Script, index: int, seconds: float, every: float = 2.0) -> list[Fence]:
    """A learner is alive and makes no step for this long; returns the end of its session."""
    fences: list[Fence] = []
    until = script.now + seconds
    while script.now < until:
        fences += of(script.wait(min(every, until - script.now)), Fence)
        fences += of(script.do(LearnerAlive(name(index), script.incarnations[index])), Fence)
    return [fence for fence in fences if fence.learner == name(index)]


def state_of(script: Script, index: int) -> str:
    return script.engine.view(script.now).learners[index].state


def test_alive_without_a_step_for_the_bound_is_stuck() -> None:
    script = training()
    assert beat(script, 0, STUCK_SECONDS - 4.0) == []
    assert state_of(script, 0) == "Stalled"
    (fence,) = beat(script, 0, 8.0)
    assert (fence.refusal, fence.incarnation) == (Refusal.STUCK, script.incarnations[0])
    assert fence.reason == "alive, but no step for 100 s; 100 s are allowed, and its steps take 1 s"
    assert state_of(script, 0) == "Absent"


def test_the_next_process_counts_as_a_restart_and_begins_anew() -> None:
    script = training()
    assert beat(script, 0, STUCK_SECONDS)
    join(script, 0, "another")
    script.ready(0)
    script.step(0, 2)
    assert script.engine.view(script.now).learners[0].restarts == 1
    assert beat(script, 0, STUCK_SECONDS - 4.0) == []


def test_a_learner_with_long_steps_has_many_of_them() -> None:
    script = training(first_step=False)
    script.step(0, seconds=20.0)
    bound = STUCK_STEPS * 20.0
    assert beat(script, 0, bound - 4.0) == []
    assert len(beat(script, 0, 8.0)) == 1


def test_before_the_first_step_it_has_the_time_to_start_up() -> None:
    script = training(first_step=False, startup_seconds=500.0)
    assert beat(script, 0, 496.0) == []
    (fence,) = beat(script, 0, 8.0)
    assert fence.reason.endswith("it has made none yet")


def test_a_step_begins_the_count_again() -> None:
    script = training()
    for _ in range(4):
        assert beat(script, 0, 0.8 * STUCK_SECONDS) == []
        script.step(0)


def test_a_syncer_that_was_paused_calls_nobody_stuck() -> None:
    script = training()
    script.now += 3600.0  # no timer fires, and nothing is received
    for index in (0, 1):
        assert of(script.do(LearnerAlive(name(index), script.incarnations[index])), Fence) == []
        assert beat(script, index, STUCK_SECONDS - LEASE_SECONDS - 4.0) == []


def test_a_learner_that_is_frozen_again_and_again_is_not_stuck() -> None:
    script = training(lease_seconds=1000.0)
    for _ in range(5):
        script.now += 900.0
        report = StepReported(name(0), script.incarnations[0], script.steps[0] + 1, 100, 1.0, 0.0, 2.0, 1)
        script.steps[0] += 1
        assert of(script.do(report), Fence) == []


def test_a_silent_learner_keeps_to_the_lease_rule() -> None:
    script = training()
    (fence,) = [one for one in of(script.wait(10 * STUCK_SECONDS), Fence) if one.learner == name(0)]
    assert fence.refusal is Refusal.LEASE_EXPIRED


def test_a_learner_that_waits_at_the_staleness_bound_is_not_stuck() -> None:
    script = training()
    script.step(0, script.options.max_staleness_steps - 1)
    assert beat(script, 0, 5 * STUCK_SECONDS) == []


def test_a_learner_that_evaluates_is_not_stuck() -> None:
    script = Script(options(1, stuck_seconds=STUCK_SECONDS, startup_seconds=400.0))
    join(script, 0)
    script.ready(0)
    script.step(0)
    assert script.all(Evaluate)
    assert beat(script, 0, 390.0) == []
    # It may still evaluate after the time for that is over, as long again as a start may take.
    assert beat(script, 0, 390.0) == []
    assert len(beat(script, 0, 40.0)) == 1


@pytest.mark.parametrize(
    "changes",
    [{"heals": False}, {"stuck_seconds": None}, {"rules": Rules.APART}],
    ids=["an earlier version of the learner", "never", "earlier rules"],
)
def test_who_is_not_restarted_stays_stalled(changes: dict[str, Any]) -> None:
    script = training(**changes)
    assert beat(script, 0, 10 * STUCK_SECONDS) == []
    assert state_of(script, 0) == "Stalled"


def test_a_learner_that_loads_is_not_stuck() -> None:
    script = training()
    join(script, 0, "another")
    assert beat(script, 0, 50 * STUCK_SECONDS) == []
    assert state_of(script, 0) == "Loading"
