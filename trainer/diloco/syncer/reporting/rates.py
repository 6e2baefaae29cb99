"""Rates over the last half minute, from counts looked at now and then. It must not read a clock."""

from collections import deque

WINDOW_SECONDS = 30.0


class Rate:
    """How fast a count has grown lately."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, count: float) -> None:
        """Look at the count. Call it about once a second."""
        self._samples.append((now, count))
        # One sample from before the window stays: the window's beginning lies between it and the next.
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def per_second(self) -> float:
        """Growth per second between the first and the last sample kept; 0 until there are two."""
        if len(self._samples) < 2:
            return 0.0
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return max(0.0, last - first) / (ended - began) if ended > began else 0.0
