"""A short simulation says what the whole run comes to."""

import subprocess
import sys
from statistics import fmean
from typing import Any

import pytest

from diloco.simulate.network.session import Traffic
from diloco.simulate.of_world import scenario_of
from diloco.simulate.planning.case import Case
from diloco.simulate.planning.forecast import Forecast, forecast_of
from diloco.simulate.planning.trial import trial
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Course, Simulation
from diloco.spec import DiLoCoJob
from diloco.world.model import World
from tests.support.small_job import named_job, small_job

NUMELS = (10_000,) * 12
STEPS = 3000


def job(learners: int = 2, steps: int = STEPS, **sync: Any) -> DiLoCoJob:
    regions = [{"name": name, "pools": [{"name": "a", "learners": learners}]} for name in ("east", "west")]
    training = {"tokens": steps * 2 * learners * 64, "sequenceLength": 16, "batchSize": 4}
    return named_job("forecast", small_job(regions=regions, training=training, sync={"fragments": 12} | sync))


def world(pool: dict[str, Any] | None = None, **region: Any) -> World:
    every = {"pools": {"*": {"stepSeconds": 0.5} | (pool or {})}} | region
    return World.model_validate({"regions": {"*": every}})


def found(given: DiLoCoJob, where: World) -> Forecast:
    case = Case.of(given, where, NUMELS)
    tried = trial(case)
    assert tried is not None
    return forecast_of(case, tried)


def whole(given: DiLoCoJob, where: World, seed: int = 0) -> tuple[Course, Traffic]:
    layout = layout_of_sizes(NUMELS)
    scenario = scenario_of(given.spec, where, layout.numel, seed)
    simulation = Simulation(given, scenario, layout, counted_work(given.spec, layout))
    return simulation.complete(), simulation.traffic


def finished(given: DiLoCoJob, where: World, seed: int) -> float:
    return whole(given, where, seed)[0].virtual_seconds


@pytest.mark.parametrize("rate", ["unlimited", "3Mbit/s"])
@pytest.mark.parametrize("between", [0.0, 0.2])
def test_without_failures_it_is_when_the_whole_simulation_ends(rate: str, between: float) -> None:
    where = world({"betweenSteps": between, "startSeconds": 1000 * between}, link=rate, roundTripSeconds=0.05)
    made = found(job(), where)
    assert made.seconds[0] == made.seconds[1] == made.seconds[2]
    run, traffic = whole(job(), where)
    assert made.seconds[1] == pytest.approx(run.virtual_seconds, rel=0.03)
    assert made.merges == pytest.approx(run.counts.merges, rel=0.02)
    for region, sent in made.bytes.items():
        assert sent == pytest.approx((traffic.up[region], traffic.down[region]), rel=0.02)
    assert made.merged_share == pytest.approx(run.view.merged, abs=0.02)
    assert made.computing_share == 1.0
    assert made.members_per_merge == 4.0


@pytest.mark.slow
def test_failures_delay_it_as_much_as_the_engine_with_them_in_the_loop() -> None:
    where = world({"preemptionsPerHour": 12, "recovery": {"meanSeconds": 30}})
    made = found(job(), where)
    runs = [whole(job(), where, seed) for seed in range(5)]
    assert made.computing_share < 0.9
    assert made.seconds[0] < made.seconds[1] < made.seconds[2]
    assert made.seconds[1] == pytest.approx(fmean(run.virtual_seconds for run, _ in runs), rel=0.1)
    assert made.merged_share == pytest.approx(fmean(run.view.merged or 0.0 for run, _ in runs), abs=0.03)
    for way in (0, 1):
        sent = fmean([traffic.up, traffic.down][way]["east"] for _, traffic in runs)
        assert made.bytes["east"][way] == pytest.approx(sent, rel=0.05)
    assert made.seconds[1] > found(job(), world()).seconds[1] * 1.05


@pytest.mark.slow
def test_a_quorum_of_all_waits_for_each_that_fails() -> None:
    where = world({"stepSeconds": 5, "preemptionsPerHour": 6, "recovery": {"meanSeconds": 150}})
    given = job(steps=1200, quorum=4, fragments=6)
    ends = [finished(given, where, seed) for seed in range(3)]
    made = found(given, where)
    assert made.seconds[1] == pytest.approx(fmean(ends), rel=0.15)
    assert made.seconds[1] > 1.15 * found(job(steps=1200, fragments=6), where).seconds[1]


def test_a_link_that_is_too_thin_makes_learners_wait() -> None:
    thin = found(job(), world(link="200kbit/s"))
    assert thin.merged_share < 0.6 * found(job(), world()).merged_share


@pytest.mark.slow
def test_many_learners_and_long_intervals_are_forecast_from_few() -> None:
    where = world(link="40Mbit/s", roundTripSeconds=0.05)
    for given in (job(24, steps=300), job(2, steps=9000, interval=1000)):
        made = found(given, where)
        assert made.seconds[1] == pytest.approx(finished(given, where, 0), rel=0.03)
        assert made.members_per_merge == pytest.approx(len(given.spec.learner_ids), rel=0.01)


def test_it_costs_its_time_and_its_bytes() -> None:
    hours = found(job(), world()).seconds[1] / 3600
    assert found(job(), world({"pricePerHour": 2.0})).cost == pytest.approx(4 * 2.0 * hours)
    assert found(job(), world(pricePerGB=1.0)).cost > 0


def test_it_does_not_load_torch() -> None:
    code = "import sys, diloco.cli.manifests.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
