"""RDA of a tensor, worked out by hand from norms."""

import math

import pytest

from diloco.core.merge.radial import (
    CANCELLATION,
    NO_DIRECTION,
    direction_agreement,
    final_length,
    mean_norm,
    radial_factors,
)


def test_every_member_points_as_far_as_the_mean_norm() -> None:
    norm = mean_norm((0.2, 0.8), (5.0, 10.0))
    assert norm == pytest.approx(9.0)
    assert radial_factors((0.2, 0.8), (5.0, 10.0), norm) == pytest.approx((0.2 * 9 / 5, 0.8 * 9 / 10))


@pytest.mark.parametrize(
    ("norm", "counts"), [(0.0, False), (0.5 * NO_DIRECTION, False), (2.0 * NO_DIRECTION, True), (0.5, True)]
)
def test_a_member_with_next_to_no_norm_has_no_direction(norm: float, *, counts: bool) -> None:
    target = mean_norm((0.5, 0.5), (1.0, norm))
    assert (radial_factors((0.5, 0.5), (1.0, norm), target)[1] > 0) is counts


def test_members_of_zeros_agree_on_nothing() -> None:
    assert radial_factors((0.5, 0.5), (0.0, 0.0), 0.0) == (0.0, 0.0)
    assert direction_agreement(4.0, 0.0) == 0.0


@pytest.mark.parametrize(
    ("combined_square", "agreement"),
    [(4.0, 1.0), (2.0, math.sqrt(0.5)), (0.0, 0.0)],  # all alike, at right angles, against each other
)
def test_agreement_is_the_length_of_the_mean_direction(combined_square: float, agreement: float) -> None:
    assert direction_agreement(combined_square, 2.0) == pytest.approx(agreement)


@pytest.mark.parametrize(
    ("agreement", "length"),
    [(1.0, 1.0), (0.25, 4.0), (2.0**-12, 4096.0), (0.99 * CANCELLATION, 0.0), (0.0, 0.0)],
)
def test_a_direction_is_brought_to_its_length_unless_it_is_cancelled(agreement: float, length: float) -> None:
    assert final_length(agreement) == length
