"""Which learners are found stuck, and everything that must not look like it."""

from diloco.core.engine.actions import Evaluate, Fence, Refusal
from diloco.core.engine.members.leases import STUCK_STEPS
from tests.support.engine_script import Script, name, of, started, stepped, training

STUCK_SECONDS = 100.0
LEASE_SECONDS = 10.0


def beat(script: Script, index: int, seconds: float, every: float = 2.0) -> list[Fence]:
    """A learner is alive and makes no step for this long; returns the end of its session."""
    fences: list[Fence] = []
    until = script.now + seconds
    while script.now < until:
        fences += of(script.wait(min(every, until - script.now)), Fence)
        fences += of(script.alive(index), Fence)
    return [fence for fence in fences if fence.learner == name(index)]


def test_alive_without_a_step_for_the_bound_is_stuck() -> None:
    script = training(2, stuck_seconds=STUCK_SECONDS)
    assert beat(script, 0, STUCK_SECONDS - 4.0) == []
    assert script.learner(0).state == "Stalled"
    (fence,) = beat(script, 0, 8.0)
    assert (fence.refusal, fence.incarnation) == (Refusal.STUCK, script.incarnations[0])
    assert fence.reason == "alive, but no step for 100 s; 100 s are allowed, and its steps take 1 s"
    assert script.learner(0).state == "Absent"


def test_the_next_process_counts_as_a_restart_and_begins_anew() -> None:
    script = training(2, stuck_seconds=STUCK_SECONDS)
    assert beat(script, 0, STUCK_SECONDS)
    script.begin(0, "another")
    script.step(0, 2)
    assert script.learner(0).restarts == 1
    assert beat(script, 0, STUCK_SECONDS - 4.0) == []


def test_a_learner_with_long_steps_has_many_of_them() -> None:
    script = started(2, stuck_seconds=STUCK_SECONDS)
    script.evaluated()
    script.step(0, seconds=20.0)
    bound = STUCK_STEPS * 20.0
    assert beat(script, 0, bound - 4.0) == []
    assert len(beat(script, 0, 8.0)) == 1


def test_before_the_first_step_it_has_the_time_to_start_up() -> None:
    script = started(2, stuck_seconds=STUCK_SECONDS, startup_seconds=500.0)
    script.evaluated()
    assert beat(script, 0, 496.0) == []
    (fence,) = beat(script, 0, 8.0)
    assert fence.reason.endswith("it has made none yet")


def test_a_step_begins_the_count_again() -> None:
    script = training(2, stuck_seconds=STUCK_SECONDS)
    for _ in range(4):
        assert beat(script, 0, 0.8 * STUCK_SECONDS) == []
        script.step(0)


def test_a_syncer_that_was_paused_calls_nobody_stuck() -> None:
    script = training(2, stuck_seconds=STUCK_SECONDS)
    script.now += 3600.0  # no timer fires, and nothing is received
    for index in (0, 1):
        assert of(script.alive(index), Fence) == []
        assert beat(script, index, STUCK_SECONDS - LEASE_SECONDS - 4.0) == []


def test_a_learner_that_is_frozen_again_and_again_is_not_stuck() -> None:
    script = training(2, stuck_seconds=STUCK_SECONDS, lease_seconds=1000.0)
    for _ in range(5):
        script.now += 900.0
        assert of(script.step(0), Fence) == []


def test_a_learner_that_waits_at_the_staleness_bound_is_not_stuck() -> None:
    script = training(2, stuck_seconds=STUCK_SECONDS)
    script.step(0, script.options.max_staleness_steps - 1)
    assert beat(script, 0, 5 * STUCK_SECONDS) == []


def test_a_learner_that_evaluates_is_not_stuck() -> None:
    script = stepped(1, stuck_seconds=STUCK_SECONDS, startup_seconds=400.0)
    assert script.all(Evaluate)
    assert beat(script, 0, 390.0) == []
    # It may still evaluate after the time for that is over, as long again as a start may take.
    assert beat(script, 0, 390.0) == []
    assert len(beat(script, 0, 40.0)) == 1


def test_who_is_not_restarted_stays_stalled() -> None:
    script = training(2)
    assert beat(script, 0, 10 * STUCK_SECONDS) == []
    assert script.learner(0).state == "Stalled"


def test_a_learner_that_loads_is_not_stuck() -> None:
    script = training(2, stuck_seconds=STUCK_SECONDS)
    script.join(0, "another")
    assert beat(script, 0, 50 * STUCK_SECONDS) == []
    assert script.learner(0).state == "Loading"
