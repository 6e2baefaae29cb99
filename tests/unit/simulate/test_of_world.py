"""The scenario of a job is what its world file and its manifest say."""

import math
from typing import Any

import pytest

from diloco.simulate.of_world import scenario_of
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.world import Simulation
from diloco.spec import JobSpec
from diloco.world import WorldError
from diloco.world.model import World
from diloco.world.rates import CONNECTION_BYTES
from tests.support.small_job import named_job, small_job

REGIONS = [
    {"name": "east", "bandwidth": "50Mbit/s", "pools": [{"name": "a", "learners": 2}]},
    {"name": "west", "connections": 2, "pools": [{"name": "b", "processesPerNode": 4}, {"name": "c", "learners": 0}]},
]


def job() -> JobSpec:
    return small_job(regions=REGIONS)


def world(**regions: Any) -> World:
    return World.model_validate({"regions": regions | {"*": {"pools": {"*": {"stepSeconds": 0.5}}}}})


def test_links_are_shared_by_a_region_and_bounded_by_the_manifest() -> None:
    given = world(east={"link": "1Gbit/s"}, west={"link": "80Mbit/s", "roundTripSeconds": 0.1, "jitterSeconds": 0.02})
    made = scenario_of(job(), given.model_copy(update={"syncer": given.syncer}), 1, 3)
    assert made.lines == {"east": 6.25e6, "west": 10e6}
    east, west = made.profile("east/a/1"), made.profile("west/b/0")
    assert (east.lines, west.lines, made.seed) == (("east",), ("west",), 3)
    assert (east.link.latency_seconds, east.link.bytes_per_second) == (0.0, math.inf)
    assert (west.link.latency_seconds, west.link.jitter_seconds) == (0.05, 0.02)
    assert west.link.bytes_per_second == 2 * CONNECTION_BYTES / 0.1
    assert sorted(made.profiles) == ["east/a/0", "east/a/1", "west/b/0"]


def test_the_syncers_own_link_is_shared_by_all() -> None:
    given = World.model_validate({"syncer": {"link": "8Mbit/s", "mergeRate": "1GB/s"}, "regions": world().regions})
    made = scenario_of(job(), given, 1, 0)
    (name,) = made.profile("west/b/0").lines
    assert made.profile("east/a/0").lines == ("east", name)
    assert (made.lines[name], made.merge_bytes_per_second) == (1e6, 1e9)


def test_lines_that_carry_all_that_leads_into_them_are_left_out() -> None:
    carried = 2 * CONNECTION_BYTES / 0.1  # by the connections of the learner in the west
    west = {"link": f"{carried!r}B/s", "roundTripSeconds": 0.1}
    given = world(east={"link": "1Gbit/s"}, west=west)
    both = 6.25e6 + carried
    enough = given.model_copy(update={"syncer": given.syncer.model_copy(update={"link": f"{both!r}B/s"})})
    too_little = given.model_copy(update={"syncer": given.syncer.model_copy(update={"link": f"{0.99 * both!r}B/s"})})
    assert scenario_of(job(), enough, 1, 0).lines == {"east": 6.25e6}
    assert scenario_of(job(), enough, 1, 0).profile("west/b/0").lines == ()
    assert len(scenario_of(job(), too_little, 1, 0).lines) == 2


def test_learners_fail_as_their_pool_says() -> None:
    failing = {"chipInterruptionHours": 100, "sliceChips": 2, "preemptionsPerHour": 4, "recovery": {"meanSeconds": 30}}
    made = scenario_of(job(), world(west={"pools": {"b": failing}}), 1, 0)
    (found,) = made.failures.values()
    assert (found.chips, found.slice_chips, found.chip_interruption_seconds) == (4, 2, 360_000)
    assert (found.preemption_seconds, found.recovery.mean_seconds) == (900, 30)
    assert list(made.failures) == ["west/b/0"]


def test_a_step_time_that_is_not_known_is_named() -> None:
    with pytest.raises(WorldError, match=r"^regions.east.pools.a.stepSeconds: is missing; use seconds, or chipFlops$"):
        scenario_of(job(), World(), 1, 0)


def test_a_step_of_a_learner_takes_few_happenings() -> None:
    """A step's end, its report, a request, an outer gradient and a new fragment; what else, once for all learners."""
    regions = [{"name": "here", "pools": [{"name": "a", "learners": 16}]}]
    given = named_job("few", small_job(regions=regions, training={"tokens": 10**9}, sync={"fragments": 24}))
    layout = layout_of_sizes([10_000] * 24)
    where = world(here={"link": "1Gbit/s", "roundTripSeconds": 0.02})
    simulation = Simulation(
        given, scenario_of(given.spec, where, layout.numel, 0), layout, counted_work(given.spec, layout)
    )
    simulation.advance(100.0)
    steps = sum(learner.steps for learner in simulation.course().view.learners)
    assert simulation.events < 6.5 * steps
