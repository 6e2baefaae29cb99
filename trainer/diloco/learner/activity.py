"""Where a learner's wall time goes, honestly: every second of the inner loop's thread belongs to exactly one kind.

What lies between the end of an inner step and the start of the next counts as synchronisation unless it is known to
be something else (evaluation, a checkpoint, the initial load). So nothing that holds the loop up can hide. It must
not know what is done in that time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What the inner loop's thread is at."""

    LOADING = "loading"
    """Before the first step: builds its own things, waits for the initial model. And after the last."""
    TRAINING = "training"
    """Inner steps, and the sleep of a learner that acts out slow hardware."""
    COPYING = "copying"
    """Copies fragments to or from host buffers between two steps."""
    PAUSED = "paused"
    """At the staleness bound: waits for the syncer."""
    LOOKING = "looking"
    """Everything else between two steps: looks at requests, waits for locks."""
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    """Takes the snapshot of a checkpoint; it is written elsewhere."""


_BLOCKED = (Kind.COPYING, Kind.PAUSED, Kind.LOOKING)
_WAITED = (Kind.PAUSED, Kind.LOOKING)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds by kind, up to one moment."""

    loading: float = 0.0
    training: float = 0.0
    copying: float = 0.0
    paused: float = 0.0
    looking: float = 0.0
    evaluating: float = 0.0
    checkpointing: float = 0.0

    @property
    def wall_seconds(self) -> float:
        """All of it."""
        return float(sum(asdict(self).values()))

    @property
    def waited_seconds(self) -> float:
        """The inner loop stood still for synchronisation without moving a byte."""
        return float(sum(getattr(self, kind.value) for kind in _WAITED))

    @property
    def blocked_seconds(self) -> float:
        """The inner loop stood still for synchronisation: waiting and copying."""
        return float(sum(getattr(self, kind.value) for kind in _BLOCKED))


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

    def spent(self) -> TimeSpent:
        """Seconds so far, the running kind's included. Other threads may read a value that is one turn old."""
        seconds = dict(self._seconds)
        seconds[self._kind] += max(0.0, self._clock() - self._since)
        return TimeSpent(**{kind.value: value for kind, value in seconds.items()})
