"""Where a learner's wall time goes, honestly: every second of the inner loop's thread belongs to exactly one kind.

What lies between the end of an inner step and the start of the next counts as synchronization unless it is known to
be something else (evaluation, a checkpoint, the initial load). So nothing that holds the loop up can hide. It must
not know what is done in that time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from diloco.core.spent import TimeSpent


class Kind(StrEnum):
    """What the inner loop's thread is at; the fields of ``TimeSpent``."""

    LOADING = "loading"
    """Before the first step: builds its own things, waits for the initial model. And after the last."""
    TRAINING = "training"
    """Inner steps, and the sleep of a learner that acts out slow hardware."""
    SKIPPED = "skipped"
    """Of these, steps that changed nothing, because loss or gradient was not finite."""
    COPYING = "copying"
    """Copies fragments to or from host buffers between two steps."""
    PAUSED = "paused"
    """At the staleness bound: waits for the syncer."""
    LOOKING = "looking"
    """Everything else between two steps: looks at requests, waits for locks."""
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    """Takes the snapshot of a checkpoint; it is written elsewhere."""


class Activity:
    """A stopwatch with one hand that always points at a kind. Written by the inner loop's thread only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds of a monotonic clock."""
        self._clock = clock
        self._seconds = dict.fromkeys(Kind, 0.0)
        self._kind = Kind.LOADING
        self._since = clock()

    def turn_to(self, kind: Kind) -> Kind:
        """From now on time is of this kind; returns the kind before."""
        now = self._clock()
        before = self._kind
        self._seconds[before] += now - self._since
        self._kind, self._since = kind, now
        return before

    @contextmanager
    def at(self, kind: Kind) -> Iterator[None]:
        """Time inside is of this kind; afterwards of the kind before."""
        before = self.turn_to(kind)
        try:
            yield
        finally:
            self.turn_to(before)

    def recount(self, seconds: float, was: Kind, now: Kind) -> None:
        """Time that was counted as one kind turns out to be of another."""
        seconds = min(seconds, self._seconds[was])
        self._seconds[was] -= seconds
        self._seconds[now] += seconds

    def spent(self) -> TimeSpent:
        """Seconds so far, the running kind's included. Other threads may read a value that is one turn old."""
        seconds = dict(self._seconds)
        seconds[self._kind] += max(0.0, self._clock() - self._since)
        return TimeSpent(**{kind.value: value for kind, value in seconds.items()})
