import pytest

from diloco.simulate.published.bandwidth import grid_gbits, needed_gbits
from diloco.simulate.published.links import (
    EIGHT_PLACES,
    TWELVE,
    TWO_PLACES,
    blocking_step_seconds,
    decoupled_step_seconds,
    world_of,
)
from diloco.simulate.published.tables import EIGHT_PLACES as EIGHT_PUBLISHED
from diloco.simulate.published.tables import FASTER
from diloco.simulate.published.tables import TWO_PLACES as TWO_PUBLISHED


def test_eight_places_need_what_was_announced() -> None:
    case = EIGHT_PLACES
    needed = [needed_gbits(case.model, one, case.utilization) for one in (case.data_parallel(), case.decoupled())]
    assert needed == pytest.approx(EIGHT_PUBLISHED, rel=0.02)


def test_two_places_need_what_was_published() -> None:
    case = TWO_PLACES
    needed = [grid_gbits(case.model, one, case.utilization) for one in (case.data_parallel(), case.decoupled())]
    assert needed == pytest.approx(TWO_PUBLISHED, rel=0.02)


def test_blocking_waits_for_the_whole_all_reduce() -> None:
    bits = 2 * 3 / 4 * 16 * 12e9
    assert blocking_step_seconds(world_of(2.0)) == pytest.approx(bits / 2e9 + TWELVE.step_seconds / 3, rel=0.01)
    assert blocking_step_seconds(world_of(1e6)) == pytest.approx(TWELVE.step_seconds, rel=0.01)


def test_the_engine_is_faster_over_thin_links_and_a_step_is_no_shorter() -> None:
    thin = decoupled_step_seconds(world_of(5.0), 1800.0)
    assert thin > TWELVE.step_seconds
    assert blocking_step_seconds(world_of(5.0)) > FASTER * thin


def test_a_syncer_at_the_rate_of_one_region_slows_all() -> None:
    assert decoupled_step_seconds(world_of(5.0, "5Gbit/s"), 600.0) > 2 * decoupled_step_seconds(world_of(5.0), 600.0)
