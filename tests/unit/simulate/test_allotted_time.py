"""The classes of allotted time in whole runs: seconds agree with counts, and nothing is away that was not."""

import math
from pathlib import Path

import pytest

from diloco.core.account.time_class import TimeClass
from diloco.simulate import Cut, Kill, Link, Profile, Scenario
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import Course, simulate_course
from diloco.spec import DiLoCoJob
from tests.support.small_job import named_job, small_job, write_text

FIRST, SECOND = "here/cpu/0", "here/cpu/1"
STEP_TOKENS = 64
STEADY = Profile(jitter=0.0)


@pytest.fixture
def job(tmp_path: Path) -> DiLoCoJob:
    training = {"tokens": 200 * 2 * STEP_TOKENS, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 2}}
    sync = {"fragments": 12, "interval": 12}
    spec = small_job(write_text(tmp_path), 2, training=training, sync=sync)
    return named_job("given", spec)


def run(job: DiLoCoJob, scenario: Scenario) -> Course:
    return simulate_course(job, scenario, layout_of_sizes([1000 * (1 + index) for index in range(12)]))


def shares(course: Course, index: int = 0) -> dict[TimeClass, float]:
    learner = course.view.learners[index]
    assert math.fsum(learner.time_seconds.values()) == pytest.approx(learner.allotted_seconds)
    return {one: learner.time_seconds[one] / learner.allotted_seconds for one in TimeClass}


FAR = Profile(0.1, 0.0, link=Link(0.08, 1e7))
SCENARIOS = {
    "calm": Scenario(default=STEADY),
    "slow and far": Scenario({SECOND: Profile(0.7, 0.0, link=Link(0.2, 2e5))}, STEADY),
    "far": Scenario(default=FAR),
    "thin": Scenario(default=Profile(jitter=0.0, link=Link(0.005, 4e4))),
    "killed": Scenario(default=STEADY, faults=(Kill(FIRST, 20.3, 5.0), Kill(SECOND, 40.4, 5.0))),
    "cut": Scenario(default=STEADY, faults=(Cut(FIRST, 20.3, 8.0),)),
    "cut for long": Scenario(default=STEADY, faults=(Cut(FIRST, 20.3, 60.0),)),
}


@pytest.mark.parametrize("scenario", [*SCENARIOS.values(), Scenario(default=Profile(jitter=0.3))])
def test_merged_seconds_are_those_of_merged_tokens(job: DiLoCoJob, scenario: Scenario) -> None:
    course = run(job, scenario)
    for learner in course.view.learners:
        assert math.fsum(learner.time_seconds.values()) == pytest.approx(learner.allotted_seconds)
        profile = scenario.profile(learner.id)
        seconds = learner.merged_tokens / STEP_TOKENS * profile.step_seconds
        assert profile.jitter or learner.time_seconds[TimeClass.MERGED] == pytest.approx(seconds, abs=1e-6)


def test_in_calm_all_but_the_overlap_and_the_tail_is_merged(job: DiLoCoJob) -> None:
    time = shares(run(job, SCENARIOS["calm"]))
    # A step of the interval of 12 is made while the outer gradient is under way.
    assert time[TimeClass.OVERWRITTEN] == pytest.approx((1 - time[TimeClass.PENDING]) / 12, rel=0.1)
    assert time[TimeClass.PENDING] < 0.1
    kinds = (TimeClass.MERGED, TimeClass.OVERWRITTEN, TimeClass.PENDING)
    assert sum(time[one] for one in kinds) == pytest.approx(1, abs=1e-3)


def test_a_killed_learner_has_lost_work_and_was_away(job: DiLoCoJob) -> None:
    killed = run(job, SCENARIOS["killed"]).view.learners[0]
    # Half an interval of 12 steps of half a second on average, and never more than the whole one.
    assert 1.0 < killed.time_seconds[TimeClass.LOST] < 6.0
    # The restart after 5 s, and the step that was under way.
    assert killed.time_seconds[TimeClass.AWAY] == pytest.approx(5.0, abs=0.6)


def test_a_cut_learner_trained_all_the_while(job: DiLoCoJob) -> None:
    cut = run(job, SCENARIOS["cut"]).view.learners[0]
    assert cut.time_seconds[TimeClass.AWAY] < 0.03, "it loaded the model once"
    assert cut.time_seconds[TimeClass.LOST] > 4.0


def test_a_learner_cut_off_for_long_waited(job: DiLoCoJob) -> None:
    cut = run(job, SCENARIOS["cut for long"]).view.learners[0]
    assert cut.time_seconds[TimeClass.WAITING] > 20.0


def test_the_last_step_before_a_cut_is_reported_after_it(job: DiLoCoJob) -> None:
    back = 20.3 + 60.0 + 1.0  # and it makes its next step half a second later
    course = simulate_course(job, SCENARIOS["cut for long"], layout_of_sizes([1000] * 12), back + 0.1)
    assert course.view.learners[0].time_seconds[TimeClass.LOST] > 15.0


def test_on_a_thin_link_healthy_learners_are_too_late(job: DiLoCoJob) -> None:
    course = run(job, SCENARIOS["thin"])
    time = course.view.time_seconds
    assert time[TimeClass.LATE] + time[TimeClass.OVERWRITTEN] > time[TimeClass.LOST]
    assert course.view.merged == pytest.approx(time[TimeClass.MERGED] / math.fsum(time.values()))
