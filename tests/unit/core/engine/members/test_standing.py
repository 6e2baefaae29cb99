"""When a learner has diverged, and what is done about it."""

from collections.abc import Sequence

import pytest

from diloco.core.engine.members import standing as divergence
from diloco.core.engine.members.standing import (
    AGAINST_MERGES,
    AGAINST_TURNS,
    BROKEN_MERGES,
    LARGE_TURNS,
    LARGEST_DOUBLINGS,
    TRIAL_TURNS,
    Remedy,
    Standing,
)

FRAGMENTS = 4


PLANNED = ("a", "b", "c", "d")


def row(
    standing: Standing, fragments: list[int], *, broken: bool = True, merged: Sequence[str] = PLANNED[1:]
) -> list[Remedy | None]:
    return [
        divergence.left_out(standing, fragment, broken=broken, merged=merged, planned=PLANNED) for fragment in fragments
    ]


def on_trial() -> Standing:
    standing = Standing()
    divergence.reset(standing, "it is broken")
    divergence.loaded(standing)
    return standing


def test_broken_gradients_in_a_row_are_divergence_whatever_the_fragment() -> None:
    assert row(Standing(), [0, 1, 2]) == [None] * (BROKEN_MERGES - 1) + [Remedy.RESET]


def test_one_broken_gradient_between_merged_ones_is_none() -> None:
    standing = Standing()
    for fragment in range(20):
        assert row(standing, [fragment % FRAGMENTS]) == [None]
        divergence.merged_with(standing, fragment % FRAGMENTS, FRAGMENTS)


def test_a_fragment_that_is_always_broken_is_divergence_beside_merged_ones() -> None:
    standing, found = Standing(), []
    for _ in range(BROKEN_MERGES):
        found += row(standing, [0])
        for fragment in (1, 2, 3):
            divergence.merged_with(standing, fragment, FRAGMENTS)
    assert found == [None] * (BROKEN_MERGES - 1) + [Remedy.RESET]


def test_a_large_learner_has_diverged_only_after_many_turns_of_a_fragment() -> None:
    turns = [fragment for _ in range(LARGE_TURNS - 1) for fragment in range(FRAGMENTS)]
    standing = Standing()
    assert set(row(standing, turns, broken=False)) == {None}
    assert row(standing, [0], broken=False) == [Remedy.RESET]


def test_a_large_learner_that_is_merged_in_between_has_not_diverged() -> None:
    standing = Standing()
    for _ in range(3):
        assert set(row(standing, [0] * (LARGE_TURNS - 1), broken=False)) == {None}
        divergence.merged_with(standing, 0, FRAGMENTS)


@pytest.mark.parametrize(
    ("broken", "merged", "remedy"),
    [
        (True, "", Remedy.RESET),
        (True, "b", Remedy.QUARANTINE),
        (False, "bc", Remedy.RESET),
        (False, "bcxyz", Remedy.RESET),  # x, y and z are not planned
        (False, "bcd", Remedy.QUARANTINE),
    ],
)
def test_quarantine_needs_a_merge_that_convinces(broken: bool, merged: str, remedy: Remedy) -> None:
    times = BROKEN_MERGES if broken else LARGE_TURNS
    assert row(on_trial(), [0] * times, broken=broken, merged=merged)[-1] is remedy


def test_more_than_half_of_the_planned_may_meet_it_in_several_merges() -> None:
    standing, found = on_trial(), []
    for other in ("b", "c", "d", "b", "b", "b"):
        found += row(standing, [0], broken=False, merged=other)
    assert found == [None] * (LARGE_TURNS - 1) + [Remedy.QUARANTINE]


def test_who_points_against_the_others_merge_after_merge_is_known() -> None:
    standing, fragments = Standing(), 20
    for turn in range(AGAINST_TURNS * fragments):
        assert not divergence.is_against(standing, fragments)
        divergence.agreed(standing, -0.5 if turn else -1.0)
    assert divergence.is_against(standing, fragments)
    assert not divergence.is_against(standing, fragments + 1)
    assert standing.agreement == pytest.approx(-0.5, abs=0.01)
    divergence.agreed(standing, 0.0)
    assert not divergence.is_against(standing, 1)


def test_with_few_fragments_it_takes_many_merges_all_the_same() -> None:
    standing = Standing()
    for _ in range(AGAINST_MERGES):
        assert not divergence.is_against(standing, 1)
        divergence.agreed(standing, -0.01)
    assert divergence.is_against(standing, 1)


def test_after_enough_merges_it_is_trusted_again() -> None:
    standing = on_trial()
    for merge in range(TRIAL_TURNS * FRAGMENTS):
        assert standing.on_trial
        divergence.merged_with(standing, merge % FRAGMENTS, FRAGMENTS)
    assert (standing.on_trial, standing.reason) == (False, "")
    assert row(standing, [0, 1, 2])[-1] is Remedy.RESET


def test_what_was_sent_before_the_reset_does_not_count() -> None:
    standing = Standing()
    divergence.reset(standing, "it is broken")
    assert set(row(standing, [0, 1, 2, 3, 0, 1])) == {None}
    divergence.loaded(standing)
    assert row(standing, [0, 1]) == [None, None]


def test_each_further_quarantine_is_twice_as_long_up_to_a_bound() -> None:
    standing, seconds = on_trial(), []
    for _ in range(LARGEST_DOUBLINGS + 3):
        seconds.append(divergence.quarantine(standing, "again", 100.0, 10.0))
        assert standing.quarantined_until == 100.0 + seconds[-1]
        divergence.release(standing)
        divergence.loaded(standing)
    longest = 10.0 * 2**LARGEST_DOUBLINGS
    assert seconds == [10.0 * 2**n for n in range(LARGEST_DOUBLINGS)] + [longest] * 3
