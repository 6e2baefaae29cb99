import math
import random
from collections.abc import Callable
from itertools import islice, pairwise, takewhile
from pathlib import Path

import pytest

from diloco.simulate import Profile, Scenario, ScenarioError
from diloco.simulate.failures import Absence, Cause, Failures, Standstill, standstills
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import Course, simulate_course
from tests.support.small_job import named_job, small_job, write_text

LOSSES_PER_SECOND = 0.02
DOWN, UP, RECOVERY = 16.0, 14.0, 48.0


def failures(slices: int = 100) -> Failures:
    chips = 100
    return Failures(chips, chips // slices, chips / LOSSES_PER_SECOND, DOWN, UP, Absence(RECOVERY))


def up_to(seconds: float, what: Failures, seed: str = "seed") -> list[Standstill]:
    return list(takewhile(lambda stop: stop.at_seconds < seconds, standstills(what, seed)))


def computing_share(what: Failures, seconds: float = 4e5) -> float:
    return 1 - math.fsum(stop.seconds for stop in up_to(seconds, what)) / seconds


def test_standstills_follow_one_another_and_depend_on_the_seed_alone() -> None:
    stops = up_to(2e4, failures())
    assert all(before.at_seconds + before.seconds <= after.at_seconds for before, after in pairwise(stops))
    assert stops == up_to(2e4, failures())
    assert stops != up_to(2e4, failures(), "another")


def test_a_learner_of_one_slice_waits_for_it_after_each_loss() -> None:
    stops = up_to(1e5, failures(slices=1))
    assert {stop.cause for stop in stops} == {Cause.LOST}
    assert min(stop.seconds for stop in stops) > DOWN + UP
    share = 1 / (1 + LOSSES_PER_SECOND * (DOWN + RECOVERY + UP))
    assert computing_share(failures(slices=1)) == pytest.approx(share, abs=0.01)


def test_with_slices_left_it_pauses_at_a_loss_and_once_all_are_back() -> None:
    stops = up_to(1e5, failures())
    assert {(stop.cause, stop.seconds) for stop in stops} == {(Cause.PAUSE_DOWN, DOWN), (Cause.PAUSE_UP, UP)}
    for before, after in pairwise(stops):
        assert Cause.PAUSE_DOWN in (before.cause, after.cause)
    ups = sum(stop.cause is Cause.PAUSE_UP for stop in stops)
    assert 0.2 < ups / (len(stops) - ups) < 0.8  # some losses overlap
    assert computing_share(failures()) > computing_share(failures(slices=1)) + 0.2


def test_slices_that_are_lost_together_end_the_process() -> None:
    stops = up_to(1e5, failures(slices=2))
    assert {stop.cause for stop in stops} == {Cause.PAUSE_DOWN, Cause.PAUSE_UP, Cause.LOST}
    assert all(stop.ends_process == (stop.cause is Cause.LOST) for stop in stops)


@pytest.mark.parametrize(("shape", "power"), [(1.0, 1.0), (0.7, 2.0), (3.0, 0.5)])
def test_an_absence_has_its_mean_whatever_its_shape(shape: float, power: float) -> None:
    drawn = list(islice(Absence(RECOVERY, shape, power).draws(random.Random(0)), 40_000))
    assert math.fsum(drawn) / len(drawn) == pytest.approx(RECOVERY, rel=0.02)
    assert min(drawn) >= 0


@pytest.mark.parametrize("shape", [0.1, 0.15, 0.3, 1.0, 5.0, 100.0])
def test_absences_are_scaled_by_the_mean_of_the_whole_distribution(shape: float) -> None:
    def median(power: float) -> float:
        always = random.Random()
        always.random = lambda: 0.5  # type: ignore[method-assign]
        return next(Absence(RECOVERY, shape, power).draws(always))

    weibull = math.gamma(1 + 1 / shape)
    assert median(1.0) == pytest.approx(RECOVERY * math.log(2) ** (1 / shape) / weibull)
    larger_of_two = weibull * (2 - 2 ** (-1 / shape))
    assert median(2.0) == pytest.approx(RECOVERY * (-math.log1p(-math.sqrt(0.5))) ** (1 / shape) / larger_of_two)


def test_preemptions_take_the_whole_learner() -> None:
    stops = up_to(1e6, Failures(preemption_seconds=900.0, preempted=Absence(100.0)))
    assert {stop.cause for stop in stops} == {Cause.PREEMPTED}
    assert stops[0].ends_process
    assert len(stops) == pytest.approx(1000, rel=0.1)


def test_what_cannot_fail_never_stands_still() -> None:
    assert list(standstills(Failures(chips=8), "seed")) == []


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Failures(chips=0), "chips is 0: it must be above 0"),
        (lambda: Failures(chips=8, slice_chips=16), "slice_chips is 16: it must be at most chips, 8"),
        (lambda: Failures(chip_interruption_seconds=math.nan), "chip_interruption_seconds is nan"),
        (lambda: Failures(pause_up_seconds=-1), "pause_up_seconds is -1: it must be at least 0, and finite"),
        (lambda: Failures(preemption_seconds=0), "preemption_seconds is 0"),
        (lambda: Absence(math.inf), "mean_seconds is inf"),
        (lambda: Absence(1.0, shape=0.05), r"shape is 0.05: it must be at least 0.1"),
        (lambda: Absence(1.0, power=math.nan), "power is nan"),
    ],
)
def test_a_value_that_cannot_be_is_named(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        make()


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Failures], Course]:
    training = {"tokens": 10**9, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 2}}
    spec = small_job(write_text(tmp_path), 2, training=training, sync={"fragments": 6, "interval": 6})
    learners = spec.learner_ids

    def of(what: Failures) -> Course:
        scenario = Scenario(default=Profile(step_seconds=2.0), failures=dict.fromkeys(learners, what))
        return simulate_course(named_job("failing", spec), scenario, layout_of_sizes([1000] * 6), 4000.0)

    return of


@pytest.mark.parametrize("slices", [1, 100])
def test_learners_of_a_run_compute_but_for_their_standstills(run: Callable[[Failures], Course], slices: int) -> None:
    what = failures(slices)
    view = run(what).view
    seconds = 4000.0
    computing = 0.0
    for learner in view.learners:
        stops = up_to(seconds, what, f"0/{learner.id}")
        expected = seconds - math.fsum(min(stop.seconds, seconds - stop.at_seconds) for stop in stops)
        # A step that a lost process had begun is made again.
        lost = sum(stop.ends_process for stop in stops)
        assert 2.0 * learner.steps == pytest.approx(expected, abs=0.05 * seconds + 2.0 * lost)
        assert learner.restarts == lost
        computing += 2.0 * learner.steps
    assert view.goodput == pytest.approx(computing / (2 * seconds), abs=0.01)
