"""Automatic tau: keeps as many fragments in flight as a round's way there and back needs, and no more (ours).

On a far link a round takes long although the link is idle most of the time: more fragments in flight then keep the
schedule. On a thin link more of them only queue, every round takes longer, and learners lose what they train meanwhile.
The two are distinguished as in TCP Vegas (Brakmo and Peterson 1995): with n fragments in flight that take ``seconds``,
and ``shortest`` the time that a round took when little was under way, ``n * (1 - shortest / seconds)`` of them queue.
Results are swapped in between inner steps, so up to a step of the difference is not counted as a queue; times are
converted to those of a fragment of mean size. One more is allowed when a launch had to wait and next to none queue; one
less when nearly a whole one does. Every few intervals the number goes back to its least and the shortest time is
measured again, as links change.
"""

from dataclasses import dataclass, field

from diloco.core.engine.rounds.averages import SizedSpread

NEXT_TO_NONE = 0.5
"""Most fragments that may queue when one more is allowed (ours)."""
NEARLY_ONE = 0.75
"""Queued fragments at which one less is allowed (ours)."""
REMEMBERED_INTERVALS = 8
"""Intervals after which the shortest time is measured anew (ours)."""
LARGE = 1.5
"""Multiple of the mean size above which a long time is attributed to the size and not to a queue (ours)."""


@dataclass(slots=True)
class FragmentsInFlight:
    """How many fragments may be in flight."""

    least: int
    most: int
    """The same as ``least`` if the job fixes it."""
    fragments: int
    """P."""
    allowed: int
    times: SizedSpread = field(default_factory=SizedSpread)
    """Durations of rounds, from which the effect of a fragment's size is estimated."""
    shortest_seconds: float | None = None
    blocked: bool = False
    """Since the last change, a launch that was due had to wait."""
    rounds: int = 0
    """Rounds measured since the shortest time was reset."""
    rounds_unchanged: int = 0
    queued: bool = False
    """One too many was allowed since the shortest time was reset: it is not tried again until the next reset."""

    def held_back(self) -> None:
        """Note that a launch that is due has to wait."""
        self.blocked = True

    def measured(self, seconds: float, size: float = 1.0, step_seconds: float = 0.0) -> None:
        """A round of a fragment of this relative size took ``seconds`` until a quorum trained on its result."""
        if self.most <= self.least or not 0 < seconds < float("inf"):
            return
        self.rounds += 1
        self.rounds_unchanged += 1
        self.times.add(seconds, size)
        if size > LARGE:
            return
        # Converted to a fragment of mean size; at least half, so that one lucky time does not count for much less.
        seconds = max(seconds / 2, seconds - self.times.slope * (size - 1.0))
        self.shortest_seconds = seconds if self.shortest_seconds is None else min(self.shortest_seconds, seconds)
        if self.rounds > REMEMBERED_INTERVALS * self.fragments:
            self._change(self.least)
            self.rounds, self.shortest_seconds, self.queued = 0, None, False
        elif self.rounds_unchanged > 2 * self.allowed:  # rounds measured now were launched after the last change
            queue = self.allowed * max(0.0, 1.0 - (self.shortest_seconds + step_seconds) / seconds)
            if queue >= NEARLY_ONE and self.allowed > self.least:
                self.queued = True
                self._change(self.allowed - 1)
            elif queue < NEXT_TO_NONE and self.blocked and not self.queued and self.allowed < self.most:
                self._change(self.allowed + 1)

    def _change(self, allowed: int) -> None:
        self.allowed, self.blocked, self.rounds_unchanged = allowed, False, 0
