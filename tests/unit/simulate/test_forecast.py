"""A short simulation says what the whole run comes to."""

import subprocess
import sys
from statistics import fmean
from typing import Any

import pytest

from diloco.simulate.forecast import Forecast, forecast
from diloco.simulate.of_world import scenario_of
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Simulation
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
    made = forecast(given, where, NUMELS)
    assert made is not None
    return made


def finished(given: DiLoCoJob, where: World, seed: int) -> float:
    layout = layout_of_sizes(NUMELS)
    scenario = scenario_of(given.spec, where, layout.numel, seed)
    return Simulation(given, scenario, layout, counted_work(given.spec, layout)).complete().virtual_seconds


@pytest.mark.parametrize("rate", ["unlimited", "3Mbit/s"])
def test_without_failures_it_is_when_the_whole_simulation_ends(rate: str) -> None:
    where = world(link=rate, roundTripSeconds=0.05)
    made = found(job(), where)
    assert made.seconds[0] == made.seconds[1] == made.seconds[2]
    assert made.seconds[1] == pytest.approx(finished(job(), where, 0), rel=0.03)
    assert made.computing_share == 1.0
    assert made.members_per_merge == 4.0
    assert made.merged_share == pytest.approx(fmean(made.by_pool.values()))


@pytest.mark.slow
def test_failures_delay_it_as_much_as_the_engine_with_them_in_the_loop() -> None:
    where = world({"preemptionsPerHour": 12, "recovery": {"meanSeconds": 30}})
    made = found(job(), where)
    ends = [finished(job(), where, seed) for seed in range(5)]
    assert made.computing_share < 0.9
    assert made.seconds[0] < made.seconds[1] < made.seconds[2]
    assert made.seconds[1] == pytest.approx(fmean(ends), rel=0.1)
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


def test_a_link_that_lets_nothing_through_has_no_forecast() -> None:
    assert forecast(job(), world(link="1bit/s"), NUMELS) is None


def test_an_interval_that_is_too_long_to_simulate_shortly_has_no_forecast() -> None:
    assert forecast(job(32, interval=100_000), world(), NUMELS) is None


def test_it_costs_its_time_and_its_bytes() -> None:
    hours = found(job(), world()).seconds[1] / 3600
    assert found(job(), world({"pricePerHour": 2.0})).cost == pytest.approx(4 * 2.0 * hours)
    assert found(job(), world(pricePerGB=1.0)).cost > 0


def test_it_does_not_load_torch() -> None:
    code = "import sys, diloco.cli.manifests.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
