import math
from typing import Any

import pytest

from diloco.plan.links import link_uses
from diloco.plan.plan import Plan, make_plan
from diloco.world.rates import CONNECTION_BYTES
from diloco.world.reading import read_world
from tests.support.planned_job import REGIONS, job


def plan(
    links: list[str],
    steps: list[str],
    model_size: int | None = None,
    **changes: Any,
) -> Plan:
    made = job(**changes)
    return make_plan(made, read_world(made.spec, links, steps), model_size)


def test_pools_with_learners_are_groups_behind_their_regions_link() -> None:
    made = plan(["west=1Mbit/s,80ms", "syncer=1Gbit/s"], ["east=0.5", "west=0.25", "west/old=1"])
    groups = made.situation.groups
    assert [(group.name, group.learners, group.step_seconds) for group in groups] == [
        ("east/new", 2, 0.5),
        ("west/old", 1, 1.0),
        ("west/new", 1, 0.25),
    ]
    assert [group.tokens_per_step for group in groups] == [64, 128, 64]
    assert groups[0].link.up_bytes_per_second == math.inf
    assert groups[1].link == groups[2].link
    assert (groups[1].link.down_bytes_per_second, groups[1].link.round_trip_seconds) == (125e3, 0.08)
    assert made.situation.syncer.up_bytes_per_second == 125e6
    assert made.situation.quorum_step_seconds == 0.25


def test_what_was_not_given_is_named() -> None:
    assert plan([], ["*=1"]).assumed == (
        "the links of east and west are unlimited (--link)",
        "the syncer's own link is unlimited (--link syncer=RATE)",
    )
    assert plan(["*=1Gbit/s", "syncer=1Gbit/s"], ["*=1"]).assumed == ()
    own = plan(["*=1Gbit/s", "syncer=1Gbit/s"], ["*=1"], 10**6, model={"entrypoint": "mine:make"})
    assert own.assumed == ("fragments of equal size (--parameters)",)


def test_a_regions_bandwidth_and_connections_bound_what_its_link_carries() -> None:
    regions = [
        {"name": "east", "bandwidth": "80Mbit/s", "pools": [{"name": "a", "learners": 1}]},
        {"name": "west", "connections": 2, "pools": [{"name": "a", "learners": 3}]},
    ]
    made = plan(["*=10Gbit/s,100ms"], ["*=1"], regions=regions)
    east, west = (group.link.up_bytes_per_second for group in made.situation.groups)
    assert (east, west) == (10e6, 3 * 2 * CONNECTION_BYTES / 0.1)
    assert plan([], ["*=1"], regions=regions).assumed[0] == "the links of west are unlimited (--link)"
    near = plan(["*=1Gbit/s,1ms"], ["*=1"], regions=regions)
    assert near.situation.groups[1].link.up_bytes_per_second == 125e6


def test_a_region_named_as_the_syncer_keeps_a_link_of_its_own() -> None:
    made = plan(["*=100kbit/s"], ["*=1"], regions=[{"name": "syncer", "pools": [{"name": "a", "learners": 2}]}])
    assert [use.too_thin for use in link_uses(made.situation)] == [True, False]


def test_data_parallel_is_reckoned_for_links_between_regions_alone() -> None:
    made = plan(["east=1Gbit/s", "west=8Mbit/s"], ["*=0.5"])
    beside = made.data_parallel
    assert beside is not None
    parameters = made.model.parameters
    assert beside.step_bytes == pytest.approx(2 * 3 / 4 * parameters * 4)
    assert beside.all_reduce_seconds == pytest.approx(beside.step_bytes / 1e6)
    assert beside.slowdown == pytest.approx(max(1.0, beside.all_reduce_seconds / 0.5))
    assert beside.decoupled_step_bytes == pytest.approx(parameters * 2 / 24)
    far = plan(["east=1Gbit/s", "west=8Mbit/s,60s"], ["*=0.5"]).data_parallel
    assert far is not None
    assert far.all_reduce_seconds == beside.all_reduce_seconds  # our connections do not limit it
    assert plan([], [], regions=REGIONS[:1]).data_parallel is None
    unknown = plan(["west=8Mbit/s"], []).data_parallel
    assert unknown is not None
    assert unknown.slowdown is None
