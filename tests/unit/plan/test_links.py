import math
from dataclasses import replace

import pytest

from diloco.plan.links import LinkUse, link_uses, merging_share, thin_text
from tests.support.situations import NEEDED, between, situation


def test_how_much_of_a_link_is_used_follows_from_sizes_rate_and_step() -> None:
    uses = link_uses(situation(rates=2 * NEEDED, syncer_rate=16 * NEEDED))
    assert [(use.up_share, use.down_share) for use in uses] == [(0.25, 0.5)] * 4 + [(0.125, 0.25)]
    own = uses[-1]
    assert own.learners == 4
    assert own.up_bytes_per_hour == pytest.approx(4 * 4000 * 2 * 2 * 3600)
    assert own.down_bytes_per_hour == pytest.approx(4 * 4000 * 4 * 2 * 3600)
    assert own.load_seconds == pytest.approx(4 * 4000 * 24 / (16 * NEEDED))


@pytest.mark.parametrize(
    ("compression", "downlink", "up", "down"),
    [("None", "F32", 1.0, 1.0), ("Int8", "BF16", 0.252, 0.5), ("Int4", "Int8", 0.133, 0.252)],
)
def test_encodings_count_both_ways(compression: str, downlink: str, up: float, down: float) -> None:
    use = link_uses(situation(rates=NEEDED, compression=compression, downlink=downlink))[0]
    assert use.up_share == pytest.approx(up, abs=1e-3)
    assert use.down_share == pytest.approx(down, abs=1e-3)


def test_ten_thousand_learners_of_four_pools_are_reckoned_as_four() -> None:
    four = situation(rates=[2500 * 2 * NEEDED] * 4)
    many = replace(four, groups=tuple(replace(group, learners=2500) for group in four.groups))
    assert [use.down_share for use in link_uses(many)[:4]] == [pytest.approx(0.5)] * 4


@pytest.mark.parametrize("unknown", [(None,) * 4, (0.5, 0.5, None, 0.5)])
def test_without_step_times_nothing_is_used(unknown: tuple[float | None, ...]) -> None:
    assert link_uses(situation(steps=unknown)) == ()
    assert merging_share(situation(steps=unknown)) == 0.0


@pytest.mark.parametrize(("up", "down", "thin"), [(0.95, 0.95, False), (0.96, 0.1, True), (0.1, 0.96, True)])
def test_a_link_is_too_thin_above_nineteen_twentieths_either_way(up: float, down: float, thin: bool) -> None:
    assert LinkUse("west", 1, up, down, 0.0, 0.0, 0.0).too_thin == thin


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        ([(0.1, 0.5), (0.25, 0.95)], ""),
        ([(1.5, 1.5), (2.0, 0.1)], "the link r1 would be used to 200 % by outer gradients on the way up"),
        ([(1.5, 1.6)], "the link r0 would be used to 160 % by merged fragments on the way down of 1 learner(s)"),
        ([(1.5, 1.5), (2.0, 0.1)], "of 1 learner(s), and 1 more"),
        ([(1.5, 1.5), (2.0, 0.1), (0.1, 1.0)], "of 1 learner(s), and 2 more"),
    ],
)
def test_the_thinnest_link_is_told_by_name(uses: list[tuple[float, float]], told: str) -> None:
    world = between(*uses, *[(0.0, 0.0)] * (4 - len(uses)))
    found = thin_text(world, link_uses(world))
    assert (told in found) if told else found == ""


def test_merges_are_held_against_an_interval() -> None:
    world = replace(situation(interval=20, numels=(4000,) * 20), merge_seconds=0.5)
    assert merging_share(world) == pytest.approx(1.0)
    assert not math.isnan(merging_share(replace(world, merge_seconds=0.0)))
