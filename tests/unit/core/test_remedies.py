import math
from dataclasses import replace

import pytest

from diloco.core.fit import fit
from diloco.core.links import Situation
from diloco.core.remedies import RemedyKind, rate_text, remedies, smallest_step_seconds, with_steps
from support.situations import NEEDED, situation


def words(world: Situation) -> dict[RemedyKind, str]:
    return {remedy.kind: str(remedy) for remedy in remedies(world)}


def changed(world: Situation, **changes: object) -> Situation:
    return replace(world, exchange=replace(world.exchange, **changes))  # type: ignore[arg-type]


def test_what_fits_needs_no_remedy() -> None:
    assert remedies(situation()) == ()


def test_without_step_times_there_is_none() -> None:
    assert remedies(situation(steps=[None] * 4)) == ()


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


def test_encodings_are_narrowed_no_more_than_is_needed_and_up_first() -> None:
    assert words(situation(rates=0.4 * NEEDED, downlink="Int8"))[RemedyKind.ENCODING] == "sync.compression: Int8"
    both = words(situation(rates=0.3 * NEEDED))[RemedyKind.ENCODING]
    assert both == "sync.compression: Int8 and sync.downlink: Int8"


def test_where_no_encoding_is_narrow_enough_the_interval_grows_with_the_narrowest() -> None:
    told = words(situation(rates=0.05 * NEEDED))
    assert told[RemedyKind.ENCODING] == "sync.compression: Int4, sync.downlink: Int8 and sync.interval: 129"
    assert told[RemedyKind.INTERVAL] == "sync.interval: 506"


def test_the_narrowest_encodings_leave_only_the_other_remedies() -> None:
    narrow = situation(rates=0.1 * NEEDED, compression="Int4", downlink="Int8")
    assert list(words(narrow)) == [RemedyKind.INTERVAL, RemedyKind.RATE, RemedyKind.STEP_TIME]


def test_the_syncers_link_is_told_by_its_name() -> None:
    told = words(situation(syncer_rate=2 * NEEDED))
    assert told[RemedyKind.RATE] == "1.08 Mbit/s on the link of the syncer"


def test_an_overlap_that_is_too_short_is_left_to_the_engine_and_nothing_dearer_is_told() -> None:
    short = situation(steps=[0.05] * 4, round_trips=0.2, overlap=2)
    assert words(short) == {RemedyKind.OVERLAP: "sync.overlap: Auto"}


def test_a_staleness_bound_is_raised_to_the_least_that_fits() -> None:
    low = situation(steps=[0.05] * 4, round_trips=0.4, staleness_bound_steps=26)
    (remedy,) = remedies(low)
    assert remedy.kind is RemedyKind.STALENESS_BOUND
    bound = remedy.situation.exchange.staleness_bound_steps
    assert bound is not None
    assert str(remedy) == f"sync.maxStalenessSteps: {bound}"
    assert not fit(changed(low, staleness_bound_steps=bound - 1)).fits


def test_with_a_longer_interval_the_staleness_bound_keeps_its_distance() -> None:
    thin = situation(rates=0.9 * NEEDED, staleness_bound_steps=30)
    assert words(thin)[RemedyKind.INTERVAL] == "sync.interval: 29 and sync.maxStalenessSteps: 35"


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
