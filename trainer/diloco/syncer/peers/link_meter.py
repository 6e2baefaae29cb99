"""Measures how fast each learner's link carries fragments while it carries any.

Pushes are timed as they arrive here, pulls by the learners that receive them. Owned by the event loop.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from diloco.runtime.process.busy import BusyMeter, Moved
from diloco.spec.names.learner_ids import region_of

WINDOW_SECONDS: Final = 120.0
"""Time over which rates are measured (ours)."""
SAMPLE_SECONDS: Final = 5.0
_SHORTEST_BUSY_SECONDS: Final = 1e-3
"""With less busy time than this, a rate only says that the link is fast."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second while any are under way; None: not measured."""

    up: float | None = None
    down: float | None = None


class LinkMeter:
    """The links of all learners."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds of a monotonic clock."""
        self._clock = clock
        self._pushes: dict[str, BusyMeter] = {}
        self._regions: dict[str, BusyMeter] = {}
        self._pulls: dict[str, Moved] = {}
        self._ups: dict[str, _Window] = {}
        self._downs: dict[str, _Window] = {}
        self._sampled_at: float | None = None

    def push_began(self, learner: str) -> None:
        """Note that a learner's push has begun to arrive."""
        self._pushes.setdefault(learner, BusyMeter(self._clock)).begin()
        self._regions.setdefault(region_of(learner), BusyMeter(self._clock)).begin()

    def push_ended(self, learner: str, received_bytes: int) -> None:
        """Note that a push is over, and how many bytes were received."""
        self._pushes[learner].end(received_bytes)
        self._regions[region_of(learner)].end(received_bytes)

    def pulled(self, learner: str, pulls: Moved) -> None:
        """Set a learner's own count of its pulls since its process began."""
        self._pulls[learner] = pulls

    def sample(self, now: float) -> bool:
        """Sample the counts if that is due. Call it about every second; returns whether a sample was taken."""
        if self._sampled_at is not None and now - self._sampled_at < SAMPLE_SECONDS:
            return False
        self._sampled_at = now
        for learner, meter in self._pushes.items():
            self._ups.setdefault(learner, _Window()).add(now, meter.read())
        for learner, moved in self._pulls.items():
            self._downs.setdefault(learner, _Window()).add(now, moved)
        return True

    def region_rate(self, region: str) -> float | None:
        """Bytes per second from all learners of a region while any were under way, since the start; None: none were."""
        meter = self._regions.get(region)
        moved = Moved() if meter is None else meter.read()
        return (
            moved.bytes / moved.busy_seconds if moved.busy_seconds >= _SHORTEST_BUSY_SECONDS and moved.bytes else None
        )

    def rates(self, learner: str) -> Rates:
        """The rates over the window."""
        up, down = self._ups.get(learner), self._downs.get(learner)
        return Rates(None if up is None else up.bytes_per_second, None if down is None else down.bytes_per_second)


class RecentSeconds:
    """A duration at the samples of the window; its median smooths out changes from step to step."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=int(WINDOW_SECONDS / SAMPLE_SECONDS))

    def add(self, seconds: float) -> None:
        """Add a sample."""
        self._seconds.append(seconds)

    @property
    def median(self) -> float:
        """The median; needs at least one sample."""
        return median_low(self._seconds)


class _Window:
    """What was transferred in the window."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Moved]] = deque()

    def add(self, now: float, moved: Moved) -> None:
        if self._samples:
            last = self._samples[-1][1]
            if moved.bytes < last.bytes or moved.busy_seconds < last.busy_seconds:
                self._samples.clear()  # another process of that learner, whose counts begin at 0
        # Keep one sample from before the window: the window begins between it and the next.
        while len(self._samples) > 1 and now - self._samples[1][0] >= WINDOW_SECONDS:
            self._samples.popleft()
        self._samples.append((now, moved))

    @property
    def bytes_per_second(self) -> float | None:
        """The rate while anything was under way."""
        first, last = self._samples[0][1], self._samples[-1][1]
        busy_seconds, moved = last.busy_seconds - first.busy_seconds, last.bytes - first.bytes
        return moved / busy_seconds if moved > 0 and busy_seconds >= _SHORTEST_BUSY_SECONDS else None
