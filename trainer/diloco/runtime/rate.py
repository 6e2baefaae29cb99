"""How fast a count has grown recently: a sliding window over samples of it. Pure: times are arguments."""

from collections import deque


class Rate:
    """Growth of one count."""

    def __init__(self, window_seconds: float) -> None:
        """Start without a sample."""
        self._window_seconds = window_seconds
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, count: float) -> None:
        """Sample the count. Call it about once a second."""
        self._samples.append((now, count))
        # Keep one sample from before the window: the window begins between it and the next.
        while len(self._samples) > 2 and now - self._samples[1][0] >= self._window_seconds:
            self._samples.popleft()

    @property
    def latest(self) -> float:
        """The latest sample of the count; 0 before the first."""
        return self._samples[-1][1] if self._samples else 0.0

    @property
    def per_second(self) -> float:
        """Growth per second between the first and the last sample kept; 0 until there are two."""
        if len(self._samples) < 2:
            return 0.0
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return max(0.0, last - first) / (ended - began) if ended > began else 0.0
