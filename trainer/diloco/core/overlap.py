"""tau where it is automatic: as many fragments in flight as a round's way there and back needs, and no more (ours).

On a far link a round takes long although the link is idle for most of it: more fragments in flight then keep the
schedule. On a thin link more of them only queue, every round takes longer, and learners lose what they train meanwhile.
The two are told apart as TCP Vegas does (Brakmo and Peterson 1995): with n fragments in flight that take ``seconds``,
and ``shortest`` the time that a round took when little was under way, ``n * (1 - shortest / seconds)`` of them queue.
Results are swapped in between inner steps, so up to a step of the difference is no queue; times are converted to those
of a fragment of mean size. One more is let in when a launch had to wait and next to none queue; one less when nearly a
whole one does. The shortest time is measured anew every few intervals, for which the number goes back to its least, as
links change.
"""

from dataclasses import dataclass, field

from diloco.core.averages import SizedSpread

NEXT_TO_NONE = 0.5
"""Fragments that may queue for one more to be let in (ours)."""
NEARLY_ONE = 0.75
"""Fragments that queue for one less to be let in (ours)."""
REMEMBERED_INTERVALS = 8
"""Intervals after which the shortest time is measured anew (ours)."""
LARGE = 1.5
"""Times the mean size: what takes a larger fragment long is its size rather than a queue (ours)."""


@dataclass(slots=True)
class FragmentsInFlight:
    """How many fragments may be in flight."""

    least: int
    most: int
    """The same as ``least`` where the job fixes it."""
    fragments: int
    """P."""
    allowed: int
    times: SizedSpread = field(default_factory=SizedSpread)
    """Of rounds; what a fragment's size adds to them is told from these."""
    shortest_seconds: float | None = None
    blocked: bool = False
    """A launch that was due had to wait for a place since the last change."""
    rounds: int = 0
    """Measured since the shortest time was begun anew."""
    rounds_unchanged: int = 0
    queued: bool = False
    """One too many was let in since the shortest time was begun anew: it is not tried again until then."""

    def held_back(self) -> None:
        """A launch that is due finds no place."""
        self.blocked = True

    def measured(self, seconds: float, size: float = 1.0, step_seconds: float = 0.0) -> None:
        """A round took ``seconds`` from its launch until a quorum trained on its result.

        Args:
            seconds: as long as that.
            size: of the fragment, relative to the mean.
            step_seconds: an inner step of the quorum's slowest learner.
        """
        if self.most <= self.least or not 0 < seconds < float("inf"):
            return
        self.rounds += 1
        self.rounds_unchanged += 1
        self.times.add(seconds, size)
        if size > LARGE:
            return
        # What a fragment of mean size would have taken. One lucky time is not taken for much less than it was.
        seconds = max(seconds / 2, seconds - self.times.slope * (size - 1.0))
        self.shortest_seconds = seconds if self.shortest_seconds is None else min(self.shortest_seconds, seconds)
        if self.rounds > REMEMBERED_INTERVALS * self.fragments:
            self._change(self.least)
            self.rounds, self.shortest_seconds, self.queued = 0, None, False
        elif self.rounds_unchanged > 2 * self.allowed:  # what is measured now was launched after the last change
            queue = self.allowed * max(0.0, 1.0 - (self.shortest_seconds + step_seconds) / seconds)
            if queue >= NEARLY_ONE and self.allowed > self.least:
                self.queued = True
                self._change(self.allowed - 1)
            elif queue < NEXT_TO_NONE and self.blocked and not self.queued and self.allowed < self.most:
                self._change(self.allowed + 1)

    def _change(self, allowed: int) -> None:
        self.allowed, self.blocked, self.rounds_unchanged = allowed, False, 0
