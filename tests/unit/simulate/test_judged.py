"""A run is simulated for as long as that tells something, and its end has a reason."""

from collections.abc import Callable
from typing import Any

import pytest

from diloco.simulate.failures import Absence, Failures
from diloco.simulate.judged import Ending, Verdict, go_on, training_seconds
from diloco.simulate.scenario import Kill, Link, Profile, Scenario
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Course, Simulation
from tests.support.small_job import named_job, small_job

STEPS = 400
IDS = ("here/cpu/0", "here/cpu/1")


def run(
    scenario: Scenario,
    limit_seconds: float | None = None,
    tell: Callable[[Simulation], None] = lambda _: None,
    **sync: Any,
) -> tuple[Verdict, Course]:
    training = {"tokens": STEPS * 2 * 64, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 2}}
    job = named_job("judged", small_job(training=training, sync={"fragments": 6, "interval": 6} | sync))
    layout = layout_of_sizes([1000] * 6)
    simulation = Simulation(job, scenario, layout, counted_work(job.spec, layout))
    return go_on(simulation, job.spec, scenario, limit_seconds, tell), simulation.course()


def test_a_job_that_completes_is_simulated_to_its_end() -> None:
    scenario = Scenario()
    verdict, course = run(scenario)
    assert verdict.ending is Ending.COMPLETE
    assert verdict.finish_seconds == course.virtual_seconds
    training = {"tokens": STEPS * 2 * 64, "sequenceLength": 16, "batchSize": 4}
    wanted = training_seconds(small_job(training=training), scenario)
    assert wanted == STEPS * 0.5
    assert wanted < course.virtual_seconds < 1.3 * wanted


def test_when_its_time_is_over_the_end_is_estimated_by_the_pace_so_far() -> None:
    verdict, course = run(Scenario(), 100.0)
    whole, _ = run(Scenario())
    assert verdict.ending is Ending.TIME_UP
    assert 100 < course.virtual_seconds < 101
    assert verdict.finish_seconds == pytest.approx(whole.finish_seconds, rel=0.1)


def test_what_is_merged_before_it_counts_has_a_pace_and_a_reason() -> None:
    never_loads = Profile(link=Link(0.01, 1e-3))
    scenario = Scenario({IDS[1]: never_loads}, default=Profile(link=Link(0.01)))
    verdict, course = run(scenario, 100.0)
    assert course.view.merged_tokens == 0.0
    assert "tokens are merged, and count once all learners have begun or sync.startupSeconds, 600 s" in verdict.reason
    merged = sum(learner.merged_tokens for learner in course.view.learners)
    assert verdict.finish_seconds == pytest.approx(course.virtual_seconds * STEPS * 2 * 64 / merged)


def test_a_job_whose_learners_never_receive_the_model_has_stalled() -> None:
    verdict, course = run(Scenario(default=Profile(link=Link(0.01, 1e-3))))
    assert verdict.ending is Ending.STALLED
    assert verdict.reason.startswith("nothing was merged at all until ")
    assert "with learners 2 loading: no learner has joined yet" in verdict.reason
    assert verdict.finish_seconds is None
    assert course.virtual_seconds < 5000


def test_a_job_without_a_learner_has_failed() -> None:
    verdict, _ = run(Scenario(faults=tuple(Kill(name, 20.0, None) for name in IDS)))
    assert (verdict.ending, verdict.reason) == (Ending.FAILED, "no learner is left")


def test_a_job_that_takes_far_too_long_is_given_up() -> None:
    verdict, course = run(Scenario(default=Profile(0.01, link=Link(0.01, 100.0))), quorum=2, maxStalenessSteps=8)
    assert verdict.ending is Ending.TOO_SLOW
    assert "times as long as its learners need to train the tokens (4 s)" in verdict.reason
    assert verdict.finish_seconds is not None
    assert verdict.finish_seconds > course.virtual_seconds


def test_ctrl_c_ends_it_with_what_is_simulated_so_far() -> None:
    def interrupt(_: Simulation) -> None:
        raise KeyboardInterrupt

    verdict, course = run(Scenario(default=Profile(0.01)), None, interrupt)
    assert verdict.ending is Ending.INTERRUPTED
    assert course.virtual_seconds > 0


def test_the_same_seed_gives_the_same_course_and_another_another() -> None:
    def course(seed: int) -> Course:
        failing = Failures(preemption_seconds=60.0, preempted=Absence(5.0))
        profile = Profile(link=Link(0.01, jitter_seconds=0.005), lines=("line",))
        lines = {"line": 1e5}
        return run(Scenario(default=profile, failures=dict.fromkeys(IDS, failing), lines=lines, seed=seed))[1]

    assert course(1) == course(1)
    assert course(1).virtual_seconds != course(2).virtual_seconds


@pytest.mark.parametrize(("notice_seconds", "left"), [(0.0, False), (30.0, True)])
def test_a_learner_with_notice_of_its_preemption_leaves_in_order(notice_seconds: float, *, left: bool) -> None:
    away = Failures(preemption_seconds=60.0, preempted=Absence(1e9))
    scenario = Scenario(default=Profile(notice_seconds=notice_seconds), failures={IDS[0]: away}, seed=1)
    _, course = run(scenario, 150.0)
    gone, _ = course.view.learners
    assert (gone.state, gone.left) == ("Absent", left)
