"""Accounts for a learner's wall time: every second of the inner loop's thread belongs to exactly one kind.

Time between the end of an inner step and the start of the next counts as synchronization unless it is known to be
something else (evaluation, a checkpoint, the initial load). So no delay of the loop goes unreported.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from diloco.core.account.time_spent import TimeSpent


class Kind(StrEnum):
    """What the inner loop's thread is doing; the fields of ``TimeSpent``."""

    LOADING = "loading"
    """Before the first step, while it builds the model and waits for the initial weights; and after the last step."""
    TRAINING = "training"
    """Inner steps, and the sleep of a learner that simulates slow hardware."""
    SKIPPED = "skipped"
    """The part of the inner steps that changed nothing, because loss or gradient was not finite."""
    COPYING = "copying"
    """Copying fragments to or from host buffers between two steps."""
    PAUSED = "paused"
    """At the staleness bound, waiting for the syncer."""
    LOOKING = "looking"
    """Everything else between two steps: checking requests, waiting for locks."""
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    """Taking the snapshot for a checkpoint; another thread writes it."""


class Activity:
    """Adds up the seconds of each kind. Written by the inner loop's thread only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds of a monotonic clock."""
        self._clock = clock
        self._seconds = dict.fromkeys(Kind, 0.0)
        self._kind = Kind.LOADING
        self._since = clock()

    def switch_to(self, kind: Kind) -> Kind:
        """Count the time from now on as this kind; returns the kind before."""
        now = self._clock()
        before = self._kind
        self._seconds[before] += now - self._since
        self._kind, self._since = kind, now
        return before

    @contextmanager
    def at(self, kind: Kind) -> Iterator[None]:
        """Count the time inside as this kind; afterwards as the kind before."""
        before = self.switch_to(kind)
        try:
            yield
        finally:
            self.switch_to(before)

    def reclassify(self, seconds: float, was: Kind, now: Kind) -> None:
        """Move seconds that were counted as one kind to another."""
        seconds = min(seconds, self._seconds[was])
        self._seconds[was] -= seconds
        self._seconds[now] += seconds

    def spent(self) -> TimeSpent:
        """Seconds so far, including the current kind's. Another thread may read a value that is one switch old."""
        seconds = dict(self._seconds)
        seconds[self._kind] += max(0.0, self._clock() - self._since)
        return TimeSpent(**seconds)
