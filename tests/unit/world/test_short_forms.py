import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from diloco.spec import JobSpec
from diloco.spec.quantities import QuantityError
from diloco.world import WorldError
from diloco.world.model import World
from diloco.world.reading import read_world
from tests.support.small_job import small_job

REGIONS = [
    {"name": "east", "pools": [{"name": "new", "learners": 2}, {"name": "old", "learners": 1}]},
    {"name": "west", "pools": [{"name": "new", "learners": 2}, {"name": "empty", "learners": 0}]},
]


def job(regions: Sequence[object] = REGIONS) -> JobSpec:
    return small_job(Path("text"), regions=regions)


def links_of(world: World) -> dict[str, tuple[float, float]]:
    return {name: (one.bytes_per_second, one.round_trip_seconds) for name, one in world.regions.items()}


def steps_of(world: World, spec: JobSpec) -> dict[str, float | None]:
    return {place: world.step_seconds(spec, place, 1) for place, pool in spec.pools.items() if pool.size}


def test_nothing_given_is_a_world_without_limits_and_without_step_times() -> None:
    assert read_world(job(), [], []) == World()


def test_links_and_steps_are_read_by_region_and_pool() -> None:
    world = read_world(
        job(), ["east=100Mbit/s,80ms", "west=1GB/s", "syncer=1Gbit/s"], ["east=0.5", "east/old=750ms", "west=2"]
    )
    assert links_of(world) == {"east": (12.5e6, 0.08), "west": (1e9, 0.0)}
    assert world.syncer.bytes_per_second == 125e6
    assert steps_of(world, job()) == {"east/new": 0.5, "east/old": 0.75, "west/new": 2.0}


def test_a_star_means_all_and_the_last_one_counts() -> None:
    world = read_world(job(), ["*=1Mbit/s,5ms", "west=unlimited,1ms"], ["*=1", "west=3"])
    assert links_of(world) == {"east": (125e3, 0.005), "west": (math.inf, 0.001)}
    assert steps_of(world, job()) == {"east/new": 1.0, "east/old": 1.0, "west/new": 3.0}


@pytest.mark.parametrize(
    ("links", "steps", "told"),
    [
        (["est=1Mbit/s"], [], "--link est=1Mbit/s: 'est' is not in this job; use east, west, syncer or '*'"),
        (["east"], [], "--link east: 'east' is not NAME=VALUE; use REGION=RATE"),
        (["=1Mbit/s"], [], "--link =1Mbit/s: '=1Mbit/s' is not NAME=VALUE"),
        (["east=1"], [], "--link east=1: '1' is a rate without a unit"),
        (["syncer=1Mbit/s,5ms"], [], "has a round trip, which only links of regions have; use syncer=RATE"),
        ([], ["east=1"], "--step: is missing for west/new; use it for every pool, as in --step '*=0.5', or for none"),
        ([], ["east/odd=1"], "'east/odd' is not in this job; use east, west, east/new, east/old, west/new or '*'"),
        ([], ["west/empty=1"], "'west/empty' is not in this job"),
        ([], ["east=fast"], "--step east=fast: 'fast' is not a duration"),
        (
            ["*=1Gbit/s,2h"],
            [],
            "--link *=1Gbit/s,2h: roundTripSeconds: 7200 is too large; use a number from 0 to 3600",
        ),
        (["syncer=.5Gbit/s"], [], '--link syncer=.5Gbit/s: link: ".5Gbit/s" does not fit; use a rate such as'),
        ([], ["*=1e-320"], "--step *=1e-320: '1e-320' is zero, too small or too large; use 10ms or 0.5s"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_write(links: list[str], steps: list[str], told: str) -> None:
    with pytest.raises((WorldError, QuantityError)) as caught:
        read_world(job(), links, steps)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_region_named_as_the_syncer_leaves_open_what_is_meant() -> None:
    regions = [{"name": "syncer", "pools": [{"name": "a"}]}]
    with pytest.raises(WorldError, match="is a region of this job and also means the syncer's own link"):
        read_world(job(regions), ["syncer=1Mbit/s"], [])
    assert links_of(read_world(job(regions), ["*=1Mbit/s"], [])) == {"syncer": (125e3, 0.0)}


def test_of_many_names_a_few_are_told() -> None:
    regions = [{"name": f"r{index}", "pools": [{"name": "a"}]} for index in range(20)]
    with pytest.raises(WorldError, match=r"use r0, r1, r2, r3, r4, r5, \.\.\. or '\*'"):
        read_world(job(regions), ["x=1Mbit/s"], [])
