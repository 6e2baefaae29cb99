from dataclasses import replace
from typing import Any

import pytest

from diloco.plan.links import FULL, link_uses
from diloco.plan.needs import Needs, job_bytes, least_merges, needs
from diloco.plan.plan import make_plan
from diloco.plan.situation import Exchange, LearnerGroup, Link, Situation
from diloco.world.rates import CONNECTION_BYTES, connections_for
from diloco.world.reading import read_world
from tests.support.small_job import named_job, small_job

EXCHANGE = Exchange((1000, 3000), 8, None, None, 1, "BF16", "F32")
REGIONS: list[dict[str, Any]] = [
    {"name": "west", "pools": [{"name": "p", "learners": 2}]},
    {"name": "east", "connections": 3, "pools": [{"name": "p"}]},
]


def needed(merges: int | None, *links: str, steps: tuple[str, ...] = ("*=0.5",)) -> Needs:
    spec = small_job(regions=REGIONS, model={"entrypoint": "mine:make"}, sync={"fragments": 2, "interval": 8})
    return needs(make_plan(named_job("planned", spec), read_world(spec, links, steps), EXCHANGE.numels), merges)


def test_bytes_of_merges_are_payloads_and_the_model_once() -> None:
    model = 4 * 4000
    assert job_bytes(EXCHANGE, 0) == (0, model)
    assert job_bytes(EXCHANGE, 1) == (2 * 1000, model + 4 * 1000)
    assert job_bytes(EXCHANGE, 5) == (2 * (2 * 4000 + 1000), model + 4 * (2 * 4000 + 1000))
    encoded = replace(EXCHANGE, compression="Int4", downlink="Int8")
    up, down = job_bytes(encoded, 2)
    assert up == sum(encoded.up_bytes) < 4000
    assert down == model + sum(encoded.down_bytes)


def test_regions_need_bytes_for_their_learners() -> None:
    found = needed(11)
    up, down = job_bytes(EXCHANGE, 11)
    assert [(one.region, one.learners, one.up_bytes, one.down_bytes, one.connections) for one in found.regions] == [
        ("west", 2, 2 * up, 2 * down, 8),
        ("east", 1, up, down, 3),
    ]
    assert (found.merges, found.at_least) == (11, False)


@pytest.mark.parametrize(
    ("steps", "budget", "merges"),
    [((0.5, 0.5), 240, 2), ((0.5, 0.5), 241, 3), ((0.5, 1.0), 2000, 20), ((None, 0.5), 240, 2), ((0.5, 0.5), 1, 1)],
)
def test_where_nothing_is_known_to_be_lost_a_merge_takes_in_all(
    steps: tuple[float | None, float | None], budget: int, merges: int
) -> None:
    # Of two learners and one; 10 tokens a step each.
    groups = tuple(LearnerGroup(f"r{n}/p", 2 - n, Link(f"r{n}"), one, 10) for n, one in enumerate(steps))
    assert least_merges(Situation(EXCHANGE, groups), budget) == merges


def test_without_step_times_there_are_at_least_as_many_merges_and_no_rates() -> None:
    found = needed(None, steps=())
    assert found.at_least
    assert all(one.bytes_per_second_needed is None and one.connections_needed is None for one in found.regions)


def test_the_rate_needed_is_one_at_which_the_link_is_not_too_thin() -> None:
    rate = needed(1, "west=10kB/s").regions[0].bytes_per_second_needed
    assert rate == pytest.approx(2 * 4 * 4000 / (8 * 0.5) / FULL)
    assert rate is not None
    spec = small_job(regions=REGIONS, model={"entrypoint": "mine:make"}, sync={"fragments": 2, "interval": 8})
    for factor, thin in ((0.99, True), (1.01, False)):
        world = read_world(spec, [f"west={factor * rate}B/s"], ["*=0.5"])
        made = make_plan(named_job("planned", spec), world, EXCHANGE.numels)
        assert link_uses(made.situation)[0].too_thin is thin


@pytest.mark.parametrize(
    ("rate", "round_trip", "expected"),
    [(0.0, 1.0, 1), (1e6, 0.0, 1), (CONNECTION_BYTES / 0.1, 0.1, 1), (1.01 * CONNECTION_BYTES / 0.1, 0.1, 2)],
)
def test_connections_keep_the_bandwidth_delay_product_under_way(rate: float, round_trip: float, expected: int) -> None:
    assert connections_for(rate, round_trip) == expected
