import math
from dataclasses import replace

import pytest

from diloco.plan.fit.fit import Fit, FitKind, GroupFit, LinkUse, fit
from diloco.plan.fit.remedies import RemedyKind, remedies
from tests.support.situations import EVEN, NEEDED, between, in_steps, situation


def shares(found: Fit) -> list[float | None]:
    return [None if group.merged_share is None else round(group.merged_share, 2) for group in found.groups]


def carried(found: Fit) -> list[bool]:
    return [group.carried for group in found.groups]


def test_links_that_limit_nothing_fit_and_lose_a_step_an_interval() -> None:
    found = fit(situation())
    assert (found.kind, found.overlap, found.overlap_needed) == (FitKind.FITS, 2, 1)
    assert shares(found) == [0.96] * 4
    assert found.merged_share == pytest.approx(1 - 1 / 24, abs=0.01)


def test_how_much_of_a_link_is_used_follows_from_sizes_rate_and_step() -> None:
    found = fit(situation(rates=2 * NEEDED, syncer_rate=16 * NEEDED))
    assert [(use.up_share, use.down_share) for use in found.links] == [(0.25, 0.5)] * 4 + [(0.125, 0.25)]
    own = found.links[-1]
    assert own.learners == 4
    assert own.up_bytes_per_hour == pytest.approx(4 * 4000 * 2 * 2 * 3600)
    assert own.down_bytes_per_hour == pytest.approx(4 * 4000 * 4 * 2 * 3600)
    assert own.load_seconds == pytest.approx(4 * 4000 * 24 / (16 * NEEDED))


@pytest.mark.parametrize(
    ("compression", "downlink", "up", "down"),
    [("None", "F32", 1.0, 1.0), ("Int8", "BF16", 0.252, 0.5), ("Int4", "Int8", 0.133, 0.252)],
)
def test_encodings_count_both_ways(compression: str, downlink: str, up: float, down: float) -> None:
    use = fit(situation(rates=NEEDED, compression=compression, downlink=downlink)).links[0]
    assert use.up_share == pytest.approx(up, abs=1e-3)
    assert use.down_share == pytest.approx(down, abs=1e-3)


def test_a_link_that_is_too_thin_is_named_and_its_learners_are_not_counted() -> None:
    found = fit(situation(rates=[0.3 * NEEDED, math.inf, math.inf, math.inf]))
    assert found.kind is FitKind.LINK_TOO_THIN
    assert found.reason == "the link r0 would be used to 333 % by merged fragments on the way down of 1 learner(s)"
    assert carried(found) == [False, True, True, True]
    assert shares(found) == [None, 0.96, 0.96, 0.96]
    assert found.overlap_needed is None
    assert found.merged_share is None


def test_the_syncers_own_link_stands_in_everyones_way() -> None:
    found = fit(situation(syncer_rate=3.9 * NEEDED))
    assert found.kind is FitKind.LINK_TOO_THIN
    assert "the link of the syncer would be used to 103 % by merged fragments on the way down of 4" in found.reason
    assert carried(found) == [False] * 4
    assert found.round_seconds is None


def test_a_far_learner_is_asked_ahead_and_costs_the_others_nothing() -> None:
    found = fit(situation(steps=[0.1] * 4, round_trips=[0.16, 0.01, 0.01, 0.01]))
    assert found.fits
    assert [group.lead_steps for group in found.groups] == [2, 0, 0, 0]
    assert shares(found) == [0.87, 0.95, 0.95, 0.95]


def test_a_learner_too_far_to_be_waited_for_is_named() -> None:
    found = fit(situation(steps=[0.05] * 36, round_trips=[1.0] * 6 + [0.01] * 30))
    assert found.kind is FitKind.ROUND_TOO_LONG
    five = "r0/p, r1/p, r2/p, r3/p and r4/p"
    assert found.reason.startswith(f"answers of {five} come too late for a round to wait for at an interval of 24")
    assert carried(found) == [False] * 6 + [True] * 30


def test_a_whole_model_in_one_fragment_may_take_longer_than_an_interval() -> None:
    found = fit(situation(rates=1.3 * NEEDED, numels=(24 * 4000,)))
    assert found.kind is FitKind.ROUND_TOO_LONG
    assert "a fragment is under way for 27" in found.reason
    assert "of the interval's 24 steps of 0.5 s at r0/p, whose steps take 0.5 s, so most" in found.reason


def test_a_learner_whose_step_spans_most_of_an_interval_is_named() -> None:
    slow = situation(steps=[0.02, 1.0, 1.0, 1.0])
    found = fit(slow)
    assert found.kind is FitKind.ROUND_TOO_LONG
    assert "24 steps of 0.02 s at r1/p, whose steps take 1 s, so most of its work" in found.reason
    assert shares(found) == [0.93, 0.0, 0.0, 0.0]
    (remedy,) = remedies(slow)
    assert remedy.kind is RemedyKind.INTERVAL
    assert shares(remedy.fit) == [0.98, 0.49, 0.49, 0.49]


def test_a_set_overlap_may_be_too_short_where_an_automatic_one_is_not() -> None:
    far = situation(steps=[0.05] * 4, round_trips=0.2)
    assert (fit(far).kind, fit(far).overlap) == (FitKind.FITS, 5)
    found = fit(replace(far, exchange=replace(far.exchange, overlap=2)))
    assert found.kind is FitKind.OVERLAP_TOO_SHORT
    assert found.reason == "a round takes 4.6 steps of 0.05 s and needs an overlap of 5, not 2"
    assert fit(replace(far, exchange=replace(far.exchange, overlap=5))).fits


def test_a_staleness_bound_close_to_the_interval_makes_learners_pause() -> None:
    found = fit(situation(steps=[0.05] * 4, round_trips=0.4, staleness_bound_steps=26))
    assert found.kind is FitKind.STALENESS_BOUND_TOO_LOW
    assert "the staleness bound leaves 2 beyond the interval, so learners pause" in found.reason
    assert found.overlap == 2
    assert fit(situation(steps=[0.05] * 4, round_trips=0.4, staleness_bound_steps=40)).fits


def test_lock_step_on_links_that_carry_it_fits() -> None:
    assert fit(situation(quorum=4, staleness_bound_steps=26, overlap=2)).fits
    classic = fit(situation(quorum=4, staleness_bound_steps=24, overlap=0, numels=(96_000,)))
    assert (classic.kind, classic.overlap_needed) == (FitKind.FITS, 0)


def test_a_slow_learner_loses_a_step_of_its_own() -> None:
    assert shares(fit(situation(steps=[2.5, 0.5, 0.5, 0.5]))) == [0.79, 0.96, 0.96, 0.96]


def test_a_large_fragment_holds_up_those_behind_it() -> None:
    large = (24 * 1200, *(2921,) * 23)
    assert sum(large) <= sum(EVEN)
    even, uneven = fit(situation(rates=1.2 * NEEDED)), fit(situation(rates=1.2 * NEEDED, numels=large))
    assert even.overlap_needed is not None
    assert uneven.overlap_needed is not None
    assert uneven.overlap_needed > even.overlap_needed


@pytest.mark.parametrize("unknown", [(None,) * 4, (0.5, 0.5, None, 0.5)])
def test_without_step_times_nothing_can_be_told(unknown: tuple[float | None, ...]) -> None:
    found = fit(situation(steps=unknown))
    assert found.kind is FitKind.STEP_TIME_UNKNOWN
    assert (found.links, found.groups, found.overlap) == ((), (), None)


def test_ten_thousand_learners_of_four_pools_are_reckoned_as_four() -> None:
    four = situation(rates=[2500 * 2 * NEEDED] * 4)
    many = replace(four, groups=tuple(replace(group, learners=2500) for group in four.groups))
    assert [use.down_share for use in fit(many).links[:4]] == [pytest.approx(0.5)] * 4
    assert shares(fit(many)) == shares(fit(situation(rates=2 * NEEDED)))


def test_a_group_trains_by_its_learners_their_tokens_and_steps() -> None:
    world = situation()
    groups = tuple(replace(group, learners=3, tokens_per_step=100.0) for group in world.groups)
    assert fit(replace(world, groups=groups)).groups[0].tokens_per_second == pytest.approx(3 * 100.0 / 0.5)


@pytest.mark.parametrize(
    ("round_trip_steps", "round_seconds", "overlap_needed"),
    [(0.0, 0.25, 0), (0.5, 0.75, 2), (1.0, 0.75, 2), (2.0, 1.25, 3), (4.0, 2.25, 5)],
)
def test_a_round_takes_the_way_there_and_half_a_step(
    round_trip_steps: float, round_seconds: float, overlap_needed: int
) -> None:
    found = fit(in_steps(steps=0.5, round_trips=round_trip_steps))
    assert (found.round_seconds, found.overlap_needed) == (round_seconds, overlap_needed)


def test_the_overlap_lets_the_last_answer_in_that_is_worth_its_wait() -> None:
    # Asked 12 of its 14 steps ahead, the far one answers 2 steps after the launch.
    found = fit(in_steps(steps=0.5, round_trips=[14.0, 0.0, 0.0, 0.0], numels=(4000,)))
    assert found.overlap_needed == 2


@pytest.mark.parametrize(("interval", "overlap"), [(1, 0), (2, 1), (3, 2), (24, 2)])
def test_an_automatic_overlap_is_two_steps_where_the_interval_has_more(interval: int, overlap: int) -> None:
    assert fit(in_steps(interval=interval, numels=(4000,))).overlap == overlap


@pytest.mark.parametrize(
    ("round_trips", "told"),
    [
        ([12.0] * 4, None),  # half of the interval
        ([12.25] * 4, "a fragment is under way for 12.2 of the interval's 24 steps of 1 s"),
        ([14.0, 0.0, 0.0, 0.0], "a fragment is under way for 14.0 of the interval's 24 steps of 1 s"),
    ],
)
def test_a_fragment_is_under_way_for_half_an_interval_at_most(round_trips: list[float], told: str | None) -> None:
    found = fit(in_steps(round_trips=round_trips))
    assert found.kind is (FitKind.FITS if told is None else FitKind.ROUND_TOO_LONG)
    assert told is None or found.reason.startswith(told)


@pytest.mark.parametrize(
    ("interval", "bound", "kind"),
    [
        (10, 10, FitKind.FITS),  # half a step is a twentieth of it
        (9, 9, FitKind.STALENESS_BOUND_TOO_LOW),
        (9, 10, FitKind.FITS),
    ],
)
def test_learners_may_pause_for_a_twentieth_of_the_time_between_launches(
    interval: int, bound: int, kind: FitKind
) -> None:
    assert fit(in_steps(interval=interval, staleness_bound_steps=bound, numels=(4000,))).kind is kind


@pytest.mark.parametrize(
    ("merge_seconds", "kind"), [(0.95, FitKind.FITS), (0.96, FitKind.MERGES_TOO_SLOW), (1.0, FitKind.MERGES_TOO_SLOW)]
)
def test_merges_may_take_nineteen_twentieths_of_an_interval(merge_seconds: float, kind: FitKind) -> None:
    world = in_steps(interval=20, numels=(4000,) * 20)
    found = fit(replace(world, merge_seconds=merge_seconds))
    assert found.kind is kind
    assert kind is FitKind.FITS or found.reason.startswith("merging every fragment takes the syncer ")


@pytest.mark.parametrize(("up", "down", "thin"), [(0.95, 0.95, False), (0.96, 0.1, True), (0.1, 0.96, True)])
def test_a_link_is_too_thin_above_nineteen_twentieths_either_way(up: float, down: float, thin: bool) -> None:
    assert LinkUse("west", 1, up, down, 0.0, 0.0, 0.0).too_thin == thin


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        ([(0.0, 0.0), (0.0, 0.0)], "a round takes 0.5 steps of 0.5 s, and no link limits it"),
        ([(0.1, 0.5), (0.25, 0.25)], "the fullest link, r0, is used to 50 %"),
        ([(0.25, 0.25), (0.5, 0.1)], "the fullest link, r1, is used to 50 %"),
        ([(1.5, 1.5), (2.0, 0.1)], "the link r1 would be used to 200 % by outer gradients on the way up"),
        ([(1.5, 1.5), (2.0, 0.1)], "of 1 learner(s), and 1 more"),
        ([(1.5, 1.5), (2.0, 0.1), (0.1, 1.0)], "of 1 learner(s), and 2 more"),
    ],
)
def test_the_fullest_link_is_told_by_name(uses: list[tuple[float, float]], told: str) -> None:
    assert told in fit(between(*uses)).reason


@pytest.mark.parametrize(
    ("groups", "share"),
    [
        ((), None),
        ((GroupFit("a", 1, 0.0, 0, 1.0, 0.25),), None),  # no learner trains
        ((GroupFit("a", 1, 0.5, 0, 1.0, 0.25),), 0.25),
        ((GroupFit("a", 1, 1.0, 0, 1.0, 0.25), GroupFit("b", 1, 3.0, 0, 1.0, 0.75)), 0.625),
        ((GroupFit("a", 1, 1.0, 0, 1.0, 0.25), GroupFit("b", 1, 3.0)), None),
    ],
)
def test_shares_of_groups_weigh_what_these_train(groups: tuple[GroupFit, ...], share: float | None) -> None:
    assert Fit(FitKind.FITS, "", groups=groups).merged_share == share
