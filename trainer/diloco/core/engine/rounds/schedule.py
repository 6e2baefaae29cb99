"""Defines P, H, tau and how steps are counted, so that H neither collapses nor stretches.

Syncer steps are counted from 1. Syncer step ``s`` handles fragment ``(s - 1) mod P`` (paper) and is due when the clock
of the quorum's slowest learner, counted in inner steps, reaches ``ceil(s * H / P)``. So every fragment is synchronized
once in H inner steps, and with P = H one fragment per inner step. A syncer that starts a round as soon as learners
answer would make H collapse on a fast link.

Only a learner's own steps advance its clock. Clocks are kept near the schedule at both ends: one that is ahead (a fast
learner, or one that is back from a cut link with many steps to report) is held at the overlap, so that a burst of
reports does not make many rounds due; one that is behind (a slow learner, or a late joiner) is moved along one stride
behind, so that it can drive the schedule alone as soon as the fast ones are gone. A learner that is moved along still
needs a step of its own to become due, so M learners never launch M times as often as one.

Steps beyond the hold are forgotten, and a learner that waits at its staleness bound makes none. So, whatever its clock,
a learner that has gone an interval and the overlap since a fragment had its turn is due for its next: otherwise all
could wait for each other, after a cut link or in lock-step.
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

    def advanced(self, clock: int, steps: int, launched: int) -> int:
        """A clock after ``steps`` more inner steps, held at the overlap beyond the syncer step after ``launched``."""
        return max(clock, min(clock + steps, self.due(launched + 1) + self.overlap))

    def least_clock(self, launched: int) -> int:
        """A stride behind the schedule, once this many syncer steps are launched."""
        return self.due(launched) - self.spans(1)

    def overdue_steps(self, staleness_bound: int) -> int:
        """Inner steps of a learner since a fragment's turn that make the next one due, whatever its clock."""
        return min(self.interval + self.overlap, staleness_bound)

    def in_flight(self, overlap: int) -> int:
        """Fragments that may be under way at once: those due within ``overlap`` inner steps, 1 to all."""
        return max(1, min(self.fragments, -(-overlap * self.fragments // self.interval)))

    def spans(self, fragments: int) -> int:
        """Inner steps in which this many fragments are due."""
        return -(-fragments * self.interval // self.fragments)
