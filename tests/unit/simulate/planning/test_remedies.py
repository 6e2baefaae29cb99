"""A remedy is a change that was tried, and after which the job fits."""

import math
from typing import Any

import pytest

from diloco.plan.changes import Setting
from diloco.simulate.planning.remedies import Remedy, RemedyKind, remedies, smallest_step_seconds
from diloco.simulate.planning.trial import fit_of
from tests.support.situations import NEEDED
from tests.unit.simulate.planning.test_trial import ANY, HALF, LONG, NEAR, World


def tried(world: World, steps: int = LONG) -> dict[str, Remedy]:
    case = world.case(steps)
    found = remedies(case, fit_of(case))
    for remedy in found:
        assert remedy.fit.fits
        assert fit_of(case.changed(remedy.changes)).fits
    return {remedy.kind.value: remedy for remedy in found}


def words(world: World, steps: int = LONG) -> dict[str, str]:
    return {kind: str(remedy) for kind, remedy in tried(world, steps).items()}


def test_what_fits_gets_no_remedy() -> None:
    assert tried(World(HALF, ANY, NEAR)) == {}


def test_a_thin_link_is_helped_by_encoding_interval_rate_or_longer_steps() -> None:
    assert words(World(HALF, (0.9 * NEEDED, math.inf, math.inf, math.inf), NEAR)) == {
        "Encoding": "sync.downlink: BF16",
        "Interval": "sync.interval: 29",
        "Rate": "270 kbit/s on the link r0",
        "StepTime": "inner steps 1.17 times as long, as by a larger batch",
    }


def test_a_link_too_thin_for_any_encoding_gets_a_longer_interval() -> None:
    told = words(World(HALF, (0.05 * NEEDED,) * 4, NEAR), 4000)
    assert told["Encoding"].startswith("sync.compression: Int4, sync.downlink: Int8 and sync.interval: 1")


def test_an_overlap_that_is_too_short_is_left_to_the_engine_alone() -> None:
    assert words(World((0.05,) * 4, ANY, (0.4,) * 4, overlap=2)) == {"Overlap": "sync.overlap: Auto"}


def test_a_bound_that_makes_learners_pause_is_raised() -> None:
    (told,) = words(World((0.05,) * 4, ANY, (0.4,) * 4, staleness_bound_steps=26)).items()
    assert told == ("StalenessBound", "sync.maxStalenessSteps: 48")


def test_no_rate_helps_a_link_that_is_far() -> None:
    assert set(words(World((0.05,) * 4, ANY, (1.4, 0.01, 0.01, 0.01)))) == {"Interval", "StepTime"}


def test_no_interval_or_step_leaves_a_job_too_few_intervals() -> None:
    thin = World(HALF, (0.3 * NEEDED,) * 4, NEAR)
    long, short = (remedies(case, fit_of(case)) for case in (thin.case(4000), thin.case(200)))
    assert {one.kind for one in long} - {one.kind for one in short} == {RemedyKind.INTERVAL, RemedyKind.STEP_TIME}
    (interval,) = (one.changes[0] for one in long if one.kind is RemedyKind.INTERVAL)
    assert isinstance(interval, Setting)
    assert 200 / 4 < float(interval.value or 0) <= 4000 / 4


@pytest.mark.parametrize("rate", [1e-9, 1e-5])
def test_a_link_far_too_thin_for_any_interval_needs_another_link(rate: float) -> None:
    told = words(World(HALF, (rate * NEEDED,) * 4, NEAR))
    assert "Rate" in told
    assert told.get("Interval") is None


def test_the_shortest_step_is_found() -> None:
    world: dict[str, Any] = {"rates": (NEEDED,) * 4, "round_trips": (0.0,) * 4}
    seconds = smallest_step_seconds(World(HALF, **world).case())
    assert seconds is not None
    assert 0.5 / 0.95 < seconds < 0.65
    near = World(HALF, ANY, (0.0,) * 4, numels=(10,) * 24).case()
    assert smallest_step_seconds(near) == pytest.approx(1e-4, rel=0.01)
