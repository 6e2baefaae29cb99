"""The arithmetic of radial-directional averaging (RDA): from sums of squares to the factors of a merge.

For each tensor (Decoupled DiLoCo) the merged outer gradient is ``N * unit(sum_m w_m unit(d_m))`` with
``N = sum_m w_m |d_m|`` and ``unit(0) = 0``. The sum is computed scaled by N, which does not change its direction and
keeps the numbers in f32's range.

If the directions cancel, their mean has only the direction of rounding errors, which the formula would scale up to the
full norm. So if the mean of the unit directions is shorter than ``CANCELLATION`` the result is 0 (ours): members that
contradict each other move nothing, as with their plain mean.
"""

import math
from dataclasses import dataclass, field

CANCELLATION = 2.0**-12
"""Length of the mean of the unit directions below which a tensor does not move. f32 keeps that mean to about
``members * 2^-24``, so above it the direction is right to a hundredth even with hundreds of members."""

NO_DIRECTION = 1e-30
"""A member whose norm is a smaller share of the mean norm counts as 0: f32 could not scale it up."""


@dataclass(slots=True)
class RadialMean:
    """RDA of one tensor.

    Sums of squares come in parts, in any order: they are added with one rounding at the end, so order changes no bit.
    """

    weights: tuple[float, ...]
    """The members', summing to one."""
    squares: tuple[list[float], ...] = field(init=False)
    """Parts of each member's sum of squares, which the first pass appends."""

    def __post_init__(self) -> None:
        self.squares = tuple([] for _ in self.weights)

    def mean_norm(self) -> float:
        """N, the weighted mean of the members' norms."""
        return math.fsum(weight * norm for weight, norm in zip(self.weights, self._norms(), strict=True))

    def coefficients(self) -> tuple[float, ...]:
        """Factors of the members' values before they are added up: ``w_m N / |d_m|``; 0 for a zero member."""
        mean_norm = self.mean_norm()
        return tuple(
            weight * mean_norm / norm if norm > mean_norm * NO_DIRECTION else 0.0
            for weight, norm in zip(self.weights, self._norms(), strict=True)
        )

    def agreement(self, combined_square: float) -> float:
        """Length of the mean of the unit directions: 1 if all agree, 1/sqrt(M) for M equal ones at right angles.

        ``combined_square``: sum of squares of what ``coefficients`` combined.
        """
        mean_norm = self.mean_norm()
        return math.sqrt(combined_square) / mean_norm if mean_norm > 0.0 else 0.0

    def _norms(self) -> list[float]:
        return [math.sqrt(math.fsum(parts)) for parts in self.squares]


def final_length(agreement: float) -> float:
    """Factor that gives a combined direction its final length N; 0 if the directions cancelled."""
    return 1.0 / agreement if agreement >= CANCELLATION else 0.0
