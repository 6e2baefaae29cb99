import math
from dataclasses import replace

import pytest

from diloco.plan.fit.fit import FULL, fit
from diloco.plan.fit.situation import Exchange, LearnerGroup, Situation
from diloco.plan.needs import job_bytes, needs, rounds_until
from diloco.world.rates import CONNECTION_BYTES, connections_for
from tests.support.situations import link

NUMELS = (1000, 3000)
EXCHANGE = Exchange(NUMELS, 8, None, None, 1, "BF16", "F32")
FREE = math.inf


def situation(
    rate: float = FREE, round_trip: float = 0.01, step: float | None = 0.5, exchange: Exchange = EXCHANGE
) -> Situation:
    """Two learners behind one link and one behind another; 10 tokens a step each."""
    groups = (
        LearnerGroup("west/p", 2, link("west", rate, round_trip), step, 10),
        LearnerGroup("east/p", 1, link("east", FREE, 0.01), step, 10),
    )
    return Situation(exchange, groups)


def test_bytes_of_rounds_are_payloads_and_the_model_once() -> None:
    model = 4 * 4000
    assert job_bytes(EXCHANGE, 0) == (0, model)
    assert job_bytes(EXCHANGE, 1) == (2 * 1000, model + 4 * 1000)
    assert job_bytes(EXCHANGE, 5) == (2 * (2 * 4000 + 1000), model + 4 * (2 * 4000 + 1000))
    encoded = replace(EXCHANGE, compression="Int4", downlink="Int8")
    up, down = job_bytes(encoded, 2)
    assert up == sum(encoded.up_bytes) < 4000
    assert down == model + sum(encoded.down_bytes)


def test_regions_need_bytes_for_their_learners() -> None:
    scene = situation()
    found = needs(scene, fit(scene), 10_000)
    up, down = job_bytes(EXCHANGE, found.rounds)
    assert [(one.region, one.learners, one.up_bytes, one.down_bytes) for one in found.regions] == [
        ("west", 2, 2 * up, 2 * down),
        ("east", 1, up, down),
    ]
    assert found.seconds == pytest.approx(found.rounds * 4 * 0.5)


def test_rounds_follow_the_budget_fragment_by_fragment() -> None:
    scene = situation()
    found = fit(scene)
    share = found.merged_share
    assert share is not None
    # The first merges, at steps 4 and 8, take in 4 and 8 steps of a quarter and three quarters of the model.
    first = 30 * (0.25 * 4 + 0.75 * 8)
    assert rounds_until(scene, found, 1) == 1
    assert rounds_until(scene, found, 31) == 2
    assert rounds_until(scene, found, round(first) + 1) == 3
    cycles = 1000
    assert rounds_until(scene, found, round(first + cycles * 240 * share)) == pytest.approx(2 + 2 * cycles, abs=1)


def test_without_step_times_there_are_at_least_as_many_rounds() -> None:
    unknown, known = situation(step=None), situation()
    lower = needs(unknown, fit(unknown), 100_000)
    assert lower.at_least
    assert lower.seconds is None
    assert 0.9 < lower.rounds / needs(known, fit(known), 100_000).rounds <= 1.0
    assert all(one.bytes_per_second_needed is None and one.connections_needed is None for one in lower.regions)
    assert all(one.fragments == () for one in lower.regions)


def test_the_rate_needed_is_one_at_which_the_link_is_not_too_thin() -> None:
    scene = situation(rate=1e4)
    rate = needs(scene, fit(scene), 1000).regions[0].bytes_per_second_needed
    assert rate == pytest.approx(2 * 4 * 4000 / (8 * 0.5) / FULL)
    assert rate is not None
    for factor, thin in ((0.99, True), (1.01, False)):
        assert fit(situation(rate=factor * rate)).links[0].too_thin is thin


@pytest.mark.parametrize(
    ("rate", "round_trip", "expected"),
    [(0.0, 1.0, 1), (1e6, 0.0, 1), (CONNECTION_BYTES / 0.1, 0.1, 1), (1.01 * CONNECTION_BYTES / 0.1, 0.1, 2)],
)
def test_connections_keep_the_bandwidth_delay_product_under_way(rate: float, round_trip: float, expected: int) -> None:
    assert connections_for(rate, round_trip) == expected


def test_a_fragment_takes_its_bytes_over_the_learners_part_of_the_link() -> None:
    scene = situation(rate=40_000, round_trip=0.1)
    west, east = needs(scene, fit(scene), 1000).regions
    for numel, times in zip(NUMELS, west.fragments, strict=True):
        assert (times.up_bytes, times.down_bytes) == (2 * numel, 4 * numel)
        assert times.up_seconds == pytest.approx(0.1 + 2 * numel / 20_000)
        assert times.down_seconds == pytest.approx(0.05 + 4 * numel / 20_000)
        assert times.hidden
    assert [round(times.up_seconds, 6) for times in east.fragments] == [0.01, 0.01]
    assert (west.hidden, east.hidden) == (2, 2)


def test_in_lock_step_only_what_fits_in_the_overlap_hides() -> None:
    slow = situation(rate=40_000, exchange=replace(EXCHANGE, overlap=0, staleness_bound_steps=8, quorum=3))
    assert needs(slow, fit(slow), 1000).regions[0].hidden == 0
    some = situation(rate=40_000, exchange=replace(EXCHANGE, overlap=2, staleness_bound_steps=10, quorum=3))
    assert [one.hidden for one in needs(some, fit(some), 1000).regions[0].fragments] == [True, False]
