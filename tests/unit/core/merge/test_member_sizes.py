"""How large outer gradients are, what the standard of a merge is, and what is usual after it."""

import math

import pytest

from diloco.core.merge.member_sizes import NO_PAST, MeasuredMember, Standards, UsualSize
from tests.support.merge_members import TENSORS, member, used_to


def test_a_size_is_the_root_mean_square_over_the_root_of_the_steps() -> None:
    one = MeasuredMember("a", 4, (400.0, 64.0))
    assert (one.size(0, 100), one.size(1, 4)) == (1.0, 2.0)
    assert one.whole_size(116) == 1.0
    assert MeasuredMember("a", 0, (400.0,)).size(0, 100) == 2.0


@pytest.mark.parametrize(
    ("sizes", "usual", "standard", "settled"),
    [
        ([1, 3, 9], NO_PAST, 3, True),
        ([1, 3, 9], used_to(100), 3, True),
        ([1, 2], NO_PAST, 1, True),
        ([1, 2.1], NO_PAST, 1, False),
        ([1, 3, 9, 27], NO_PAST, 3, False),
        ([1, 3, 9, 27], used_to(1), 3, True),
        ([1, 3, 9, 27], used_to(5), 5, True),
        ([1, 3, 9, 27], used_to(100), 9, True),
    ],
)
def test_the_past_breaks_ties_and_nothing_else(
    sizes: list[float], usual: UsualSize, standard: float, *, settled: bool
) -> None:
    found = Standards.of([member(f"{size}", size, size) for size in sizes], TENSORS, usual)
    assert (*found.tensors, found.whole) == pytest.approx((standard,) * 3)
    assert found.settled is settled


def test_the_usual_sizes_follow_the_standards_of_several_members() -> None:
    first = NO_PAST.after_several(Standards((1.0, 2.0), 3.0, settled=True))
    assert first == UsualSize(1, 3.0, (1.0, 2.0, 3.0))
    second = first.after_several(Standards((2.0, 2.0), 3.0, settled=True))
    assert second.standards == pytest.approx((1.2, 2.0, 3.0))
    assert second.after_several(Standards((9.0, 9.0), 9.0, settled=False)) == second


def test_a_single_members_size_sets_no_standard() -> None:
    usual = used_to(1.0).after_one(6.0)
    assert (usual.merges, usual.standards) == (2, (1.0, 1.0, 1.0))
    assert usual.size == pytest.approx(2.0)
    assert NO_PAST.after_one(6.0) == UsualSize(1, 6.0)


@pytest.mark.parametrize(
    ("usual", "possible"),
    [
        (NO_PAST, True),
        (used_to(1.0), True),
        (UsualSize(1, 1.0, (1.0, 1.0)), False),
        (UsualSize(-1, 1.0), False),
        (UsualSize(1, math.nan), False),
        (UsualSize(1, 1.0, (1.0, -1.0, 1.0)), False),
        (UsualSize(1, 1.0, (1.0, math.inf, 1.0)), False),
    ],
)
def test_sizes_that_cannot_be_are_told_from_possible_ones(usual: UsualSize, *, possible: bool) -> None:
    assert usual.is_of(2) is possible
