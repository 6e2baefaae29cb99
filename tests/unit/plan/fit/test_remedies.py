import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from diloco.plan.fit.fit import FitKind, fit
from diloco.plan.fit.remedies import LONGEST_INTERVAL, LinkRate, RemedyKind, remedies, smallest_step_seconds, with_steps
from diloco.plan.fit.situation import Situation, rate_text
from diloco.spec.sync import SyncSpec
from tests.support.situations import NEEDED, between, in_steps, situation


def words(world: Situation) -> dict[RemedyKind, str]:
    return {remedy.kind: str(remedy) for remedy in remedies(world)}


def changed(world: Situation, **changes: object) -> Situation:
    return replace(world, exchange=replace(world.exchange, **changes))  # type: ignore[arg-type]


def test_what_fits_or_has_no_step_times_gets_no_remedy() -> None:
    assert remedies(situation()) == remedies(situation(steps=[None] * 4)) == ()


def test_a_thin_link_is_helped_by_encoding_interval_rate_or_longer_steps() -> None:
    thin = situation(rates=[0.9 * NEEDED, math.inf, math.inf, math.inf])
    assert words(thin) == {
        RemedyKind.ENCODING: "sync.downlink: BF16",
        RemedyKind.INTERVAL: "sync.interval: 29",
        RemedyKind.RATE: "269 kbit/s on the link r0",
        RemedyKind.STEP_TIME: "inner steps 1.17 times as long, as by a larger batch",
    }


def test_the_interval_is_the_smallest_that_fits() -> None:
    thin = situation(rates=0.9 * NEEDED)
    interval = next(
        remedy for remedy in remedies(thin) if remedy.kind is RemedyKind.INTERVAL
    ).situation.exchange.interval
    assert not fit(changed(thin, interval=interval - 1)).fits


@pytest.mark.parametrize(
    ("rate", "change", "told"),
    [
        (0.4, {"downlink": "Int8"}, "sync.compression: Int8"),
        (0.3, {}, "sync.compression: Int8 and sync.downlink: Int8"),
        (0.05, {}, "sync.compression: Int4, sync.downlink: Int8 and sync.interval: 128"),
        (0.1, {"compression": "Int4", "downlink": "Int8"}, None),
        (0.6, {"compression": "TopK"}, "sync.downlink: BF16"),
    ],
)
def test_encodings_are_narrowed_no_more_than_is_needed_and_up_first(
    rate: float, change: dict[str, Any], told: str | None
) -> None:
    assert words(situation(rates=rate * NEEDED, **change)).get(RemedyKind.ENCODING) == told


def test_an_overlap_that_is_too_short_is_left_to_the_engine_alone() -> None:
    short = situation(steps=[0.05] * 4, round_trips=0.2, overlap=2)
    assert words(short) == {RemedyKind.OVERLAP: "sync.overlap: Auto"}


def test_no_rate_helps_a_link_that_is_far() -> None:
    far = situation(steps=[0.05] * 4, round_trips=[1.0, 0.01, 0.01, 0.01])
    assert set(words(far)) == {RemedyKind.INTERVAL, RemedyKind.STEP_TIME}


def test_the_shortest_step_is_found_to_half_a_percent() -> None:
    thin = situation(steps=[None] * 4, rates=NEEDED)
    seconds = smallest_step_seconds(thin)
    assert seconds is not None
    assert seconds == pytest.approx(0.5 / 0.95, rel=0.006)
    assert fit(with_steps(thin, seconds)).fits
    assert smallest_step_seconds(replace(situation(round_trips=0.0), merge_seconds=0.0)) == 1e-4


def test_rates_of_links_are_told_in_bits() -> None:
    told = [rate_text(rate) for rate in (1.0, 1250.0, 12.5e6, 2.5e9)]
    assert told == ["8 bit/s", "10 kbit/s", "100 Mbit/s", "20 Gbit/s"]
    assert [rate_text(rate) for rate in (125.0, 125e3, 125e6)] == ["1 kbit/s", "1 Mbit/s", "1 Gbit/s"]


def test_no_interval_is_told_that_a_manifest_may_not_have() -> None:
    assert SyncSpec(interval=LONGEST_INTERVAL).interval == LONGEST_INTERVAL
    with pytest.raises(ValidationError):
        SyncSpec(interval=LONGEST_INTERVAL + 1)


def test_a_link_a_thousand_million_times_too_thin_needs_another_link() -> None:
    assert list(words(situation(rates=1e-9 * NEEDED))) == [RemedyKind.RATE]


def test_an_interval_too_long_for_one_encoding_is_told_with_narrower_ones() -> None:
    told = words(situation(rates=1e-5 * NEEDED))
    assert list(told) == [RemedyKind.ENCODING, RemedyKind.RATE, RemedyKind.STEP_TIME]
    assert told[RemedyKind.ENCODING].startswith("sync.compression: Int4, sync.downlink: Int8 and sync.interval: 63")


def test_the_overlap_is_left_alone_where_none_is_long_enough() -> None:
    # A round takes 6.2 steps and the bound leaves 6; two in flight of four fragments need 7.
    short = in_steps(round_trips=5.35, numels=(4000,) * 4, staleness_bound_steps=30, overlap=6)
    assert fit(short).kind is FitKind.OVERLAP_TOO_SHORT
    found = {remedy.kind: remedy for remedy in remedies(short)}
    assert set(found) == {RemedyKind.INTERVAL, RemedyKind.STEP_TIME}
    longer = found[RemedyKind.INTERVAL]
    assert str(longer) == "sync.interval: 25 and sync.maxStalenessSteps: 31"
    assert longer.situation.exchange.staleness_bound_steps == 31


def test_a_bound_one_step_too_low_is_raised_by_one() -> None:
    low = in_steps(round_trips=2.0, staleness_bound_steps=25)
    assert words(low) == {RemedyKind.STALENESS_BOUND: "sync.maxStalenessSteps: 27"}
    low = in_steps(round_trips=2.0, staleness_bound_steps=26)
    assert words(low) == {RemedyKind.STALENESS_BOUND: "sync.maxStalenessSteps: 27"}


def test_a_rate_is_that_of_the_thinner_way_and_other_links_stay() -> None:
    thin = between((2.0, 0.0), (0.1, 0.25), (0.0, 0.0))
    (remedy,) = (one for one in remedies(thin) if one.kind is RemedyKind.RATE)
    (change,) = remedy.changes
    assert isinstance(change, LinkRate)
    assert change.link == "r0"
    assert change.bytes_per_second == pytest.approx(NEEDED / 0.95, rel=0.005)
    assert remedy.situation.groups[1:] == thin.groups[1:]
    assert remedy.situation.syncer == thin.syncer


def test_where_no_link_is_too_thin_all_that_have_a_rate_are_made_faster() -> None:
    whole = situation(rates=[2.0 * NEEDED, 2.5 * NEEDED, math.inf, math.inf], numels=(24 * 4000,))
    told = words(whole)
    assert told[RemedyKind.RATE] == "785 kbit/s on the link r0 and 982 kbit/s on the link r1"
