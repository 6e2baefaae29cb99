"""The arithmetic of radial-directional averaging (RDA): from the members' norms of a tensor to the merge's factors.

For each tensor (Decoupled DiLoCo) the merged outer gradient is ``N * unit(sum_m w_m unit(d_m))`` with
``N = sum_m w_m |d_m|`` and ``unit(0) = 0``. The sum is computed scaled by N, which does not change its direction and
keeps the numbers in f32's range.

If the directions cancel, their mean has only the direction of rounding errors, which the formula would scale up to the
full norm. So if the mean of the unit directions is shorter than ``CANCELLATION`` the result is 0 (ours): members that
contradict each other move nothing, as with their plain mean.
"""

import math
from collections.abc import Sequence

CANCELLATION = 2.0**-12
"""Length of the mean of the unit directions below which a tensor does not move. f32 keeps that mean to about
``members * 2^-24``, so above it the direction is right to a hundredth even with hundreds of members."""

NO_DIRECTION = 1e-30
"""A member whose norm is a smaller share of the mean norm counts as 0: f32 could not scale it up."""


def mean_norm(weights: Sequence[float], norms: Sequence[float]) -> float:
    """N, the weighted mean of the members' norms; ``weights`` sum to one."""
    return math.fsum(weight * norm for weight, norm in zip(weights, norms, strict=True))


def radial_factors(weights: Sequence[float], norms: Sequence[float], target_norm: float) -> tuple[float, ...]:
    """Factors of the members' values before they are added up: ``w_m N / |d_m|``; 0 for a zero member.

    ``target_norm``: N.
    """
    return tuple(
        weight * target_norm / norm if norm > target_norm * NO_DIRECTION else 0.0
        for weight, norm in zip(weights, norms, strict=True)
    )


def direction_agreement(combined_square: float, target_norm: float) -> float:
    """Length of the mean of the unit directions: 1 if all agree, 1/sqrt(M) for M equal ones at right angles.

    ``combined_square``: sum of squares of what ``radial_factors`` combined.
    """
    return math.sqrt(combined_square) / target_norm if target_norm > 0.0 else 0.0


def final_length(agreement: float) -> float:
    """Factor that gives a combined direction its final length N; 0 if the directions cancelled."""
    return 1.0 / agreement if agreement >= CANCELLATION else 0.0
