"""Defines P, H, tau and how steps are counted.

Syncer steps are counted from 1. Syncer step ``s`` handles fragment ``(s - 1) mod P`` (paper) and is due when the clock
of the quorum's slowest learner, counted in inner steps, reaches ``ceil(s * H / P)``. So every fragment is synchronized
once in H inner steps, and with P = H one fragment per inner step.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """When which fragment is synchronized."""

    fragments: int
    """P."""
    interval: int
    """H, in inner steps."""
    overlap: int
    """tau, in inner steps; if it is automatic, its least value."""

    def fragment(self, step: int) -> int:
        """The fragment that syncer step ``step`` (from 1) handles."""
        return (step - 1) % self.fragments

    def due(self, step: int) -> int:
        """Inner steps on a learner's clock at which syncer step ``step`` is due."""
        return -(-step * self.interval // self.fragments)

    def in_flight(self, overlap: int) -> int:
        """Fragments that may be under way at once: those due within ``overlap`` inner steps, 1 to all."""
        return max(1, min(self.fragments, -(-overlap * self.fragments // self.interval)))

    def spans(self, fragments: int) -> int:
        """Inner steps in which this many fragments are due."""
        return -(-fragments * self.interval // self.fragments)
