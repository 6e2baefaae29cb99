"""Radial-directional averaging (RDA) in numbers: from sums of squares to what a merge multiplies by.

For each tensor (Decoupled DiLoCo) the merged outer gradient is ``N * unit(sum_m w_m unit(d_m))`` with
``N = sum_m w_m |d_m|`` and ``unit(0) = 0``. The sum is built scaled by N, which leaves its direction as it is and keeps
the numbers where f32 is at home.

Where the directions cancel, their mean has no direction but that of rounding errors, and the formula would blow those
up to the full norm. So where the mean of the unit directions is shorter than ``CANCELLATION`` the result is 0 (ours):
members that contradict each other move nothing, which is what their plain mean would do too.

It must not know torch, tensors or blocks.
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
    """One tensor's way through RDA.

    Sums of squares come in parts, in any order: they are added with one rounding at the end, so order changes no bit.
    """

    weights: tuple[float, ...]
    """The members', summing to one."""
    squares: tuple[list[float], ...] = field(init=False)
    """Parts of each member's sum of squares; whoever measures appends to them."""

    def __post_init__(self) -> None:
        self.squares = tuple([] for _ in self.weights)

    def mean_norm(self) -> float:
        """N, the weighted mean of the members' norms."""
        return math.fsum(weight * norm for weight, norm in zip(self.weights, self._norms(), strict=True))

    def coefficients(self) -> tuple[float, ...]:
        """What each member's values are multiplied by before they are added up: ``w_m N / |d_m|``; 0 for a zero."""
        mean_norm = self.mean_norm()
        return tuple(
            weight * mean_norm / norm if norm > mean_norm * NO_DIRECTION else 0.0
            for weight, norm in zip(self.weights, self._norms(), strict=True)
        )

    def agreement(self, combined_square: float) -> float:
        """Length of the mean of the unit directions: 1 where all agree, 1/sqrt(M) for M equal ones at right angles.

        Args:
            combined_square: sum of squares of what ``coefficients`` combined.
        """
        mean_norm = self.mean_norm()
        return math.sqrt(combined_square) / mean_norm if mean_norm > 0.0 else 0.0

    def _norms(self) -> list[float]:
        return [math.sqrt(math.fsum(parts)) for parts in self.squares]


def final_length(agreement: float) -> float:
    """What brings a combined direction to its final length N; 0 where the directions cancelled."""
    return 1.0 / agreement if agreement >= CANCELLATION else 0.0
