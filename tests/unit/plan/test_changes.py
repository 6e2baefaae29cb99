"""Changes after which bytes fit their links."""

import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from diloco.plan.changes import (
    LONGEST_INTERVAL,
    encodings,
    interval_for,
    interval_settings,
    measured_remedies,
    rates_for,
    times_too_much,
)
from diloco.plan.outcome import Outcome
from diloco.plan.situation import Situation
from diloco.plan.verdict import judge
from diloco.spec.sync import SyncSpec
from diloco.spec.words import listed
from tests.support.situations import NEEDED, between, situation
from tests.unit.plan.test_verdict import WELL, outcome


def told(world: Situation, measured: Outcome | None = None, steps: int = 10**9) -> list[str]:
    tokens = round(steps * world.tokens_in_a_step)
    return [listed(changes, "and") for changes in measured_remedies(world, judge(world, measured), tokens)]


def test_a_thin_link_is_helped_by_encoding_interval_rate_or_longer_steps() -> None:
    thin = situation(rates=[0.9 * NEEDED, math.inf, math.inf, math.inf])
    assert told(thin) == [
        "sync.downlink: BF16",
        "sync.interval: 29",
        "269 kbit/s on the link r0",
        "inner steps 1.17 times as long, as by a larger batch",
    ]
    assert told(situation()) == []


@pytest.mark.parametrize(
    ("rate", "change", "first"),
    [
        (0.4, {"downlink": "Int8"}, "sync.compression: Int8"),
        (0.3, {}, "sync.compression: Int8 and sync.downlink: Int8"),
        (0.6, {"compression": "TopK"}, "sync.downlink: BF16"),
    ],
)
def test_encodings_are_narrowed_no_more_than_is_needed_and_up_first(
    rate: float, change: dict[str, Any], first: str
) -> None:
    assert listed(next(encodings(situation(rates=rate * NEEDED, **change))), "and") == first


def test_no_encoding_is_narrow_enough_for_a_link_that_is_far_too_thin() -> None:
    assert [*encodings(situation(rates=0.05 * NEEDED))] == []


@pytest.mark.parametrize("use", [1.01, 1.4, 20.0])
def test_bytes_just_fit_with_the_interval_and_the_rates_that_are_found(use: float) -> None:
    thin = between((use, 0.1), (0.5, 0.5), (0.0, 0.0))
    for more, fits in ((0, True), (-1, False)):
        exchange = replace(thin.exchange, interval=interval_for(thin) + more)
        assert (times_too_much(replace(thin, exchange=exchange)) <= 1) is fits
    (rate,) = rates_for(thin)
    assert rate.link == "r0"
    assert times_too_much(thin) == pytest.approx(use / 0.95)
    assert rate.bytes_per_second == pytest.approx(thin.groups[0].link.up_bytes_per_second * use / 0.95)


def test_a_slow_syncer_needs_longer_intervals_and_no_other_link() -> None:
    slow = replace(situation(), merge_seconds=0.5)
    assert (interval_for(slow), rates_for(slow)) == (26, ())


def test_where_no_link_is_too_thin_all_that_have_a_rate_are_made_faster() -> None:
    rates = rates_for(situation(rates=[2.0 * NEEDED, 2.5 * NEEDED, math.inf, math.inf]), 1.5)
    assert [(one.link, one.bytes_per_second / NEEDED) for one in rates] == [("r0", 3.0), ("r1", 3.75)]


def test_the_staleness_bound_stays_as_far_beyond_the_interval() -> None:
    made = interval_settings(situation(staleness_bound_steps=30), 48)
    assert listed(made, "and") == "sync.interval: 48 and sync.maxStalenessSteps: 54"


def test_what_is_measured_tells_the_overlap_the_bound_and_the_interval() -> None:
    assert told(situation(overlap=2), outcome(steps=4.6, pace=0.8)) == ["sync.overlap: Auto"]
    bounded = situation(staleness_bound_steps=26)
    assert told(bounded, outcome(replace(WELL, waiting=0.2), steps=4.6)) == ["sync.maxStalenessSteps: 29"]
    assert told(situation(), outcome(replace(WELL, overwritten=0.75))) == ["sync.interval: 36"]
    assert told(situation(), outcome(replace(WELL, late=0.9))) == []


def test_a_short_job_is_not_told_to_have_fewer_than_four_intervals() -> None:
    thin = situation(rates=[0.9 * NEEDED, math.inf, math.inf, math.inf])
    assert told(thin, steps=4 * 29)[1] == "sync.interval: 29"
    assert [one for one in told(thin, steps=4 * 28) if "interval" in one or "steps" in one] == []
    lossy = outcome(replace(WELL, overwritten=0.75))
    assert told(situation(), lossy, steps=4 * 36) == ["sync.interval: 36"]
    assert told(situation(), lossy, steps=4 * 36 - 1) == []


def test_no_interval_is_told_that_a_manifest_may_not_have() -> None:
    assert SyncSpec(interval=LONGEST_INTERVAL).interval == LONGEST_INTERVAL
    with pytest.raises(ValidationError):
        SyncSpec(interval=LONGEST_INTERVAL + 1)
