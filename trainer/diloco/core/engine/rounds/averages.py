"""Moving averages of the durations on which the engine bases decisions (paper: the xi of Eq. 3)."""

from dataclasses import dataclass, field

MEMORY = 0.8
"""Weight of the old average when a measurement is added (ours): a burst is forgotten after about ten."""
DEVIATION_MEMORY = 0.75
"""The same for deviations (RFC 6298, section 2.3)."""
SLOPE_MEMORY = 0.95
"""The same for the effect of sizes, for which more measurements are needed (ours)."""
LEAST_SIZE_VARIANCE = 1e-4
"""Least variance of sizes relative to their mean: below it a slope cannot be told from noise (ours)."""


@dataclass(slots=True)
class MovingAverage:
    """Exponential moving average of seconds; ``None`` until the first measurement."""

    seconds: float | None = None

    def add(self, seconds: float) -> None:
        """Add a measurement. Negative or non-finite ones come from a faulty clock and are ignored."""
        if not 0 <= seconds < float("inf"):
            return
        self.seconds = seconds if self.seconds is None else MEMORY * self.seconds + (1 - MEMORY) * seconds

    def or_else(self, seconds: float) -> float:
        """The average, or ``seconds`` if nothing is measured yet."""
        return seconds if self.seconds is None else self.seconds


@dataclass(slots=True)
class StepAverage:
    """Moving averages of a process's inner steps, over reports that stand for several steps each.

    Sums are averaged, so a report counts by its steps. The first report counts only until the second: its step may
    have compiled for minutes.
    """

    reports: int = 0
    _seconds: float = 0.0
    _steps: float = 0.0
    _tokens: float = 0.0
    seconds: float | None = field(init=False, repr=False, compare=False)
    """Of a step; None until the first report."""
    tokens_per_second: float = field(init=False, repr=False, compare=False)
    """Tokens in a second of steps; 0 until the first report."""

    def __post_init__(self) -> None:
        self._divide()

    def add(self, step_seconds: float, steps: int = 1, tokens: int = 0) -> None:
        """Add a report of ``steps`` steps with ``tokens`` in all. One of a faulty clock is ignored."""
        if not 0 <= step_seconds < float("inf"):
            return
        self.reports += 1
        memory = MEMORY if self.reports > 2 else 0.0
        self._seconds = memory * self._seconds + (1 - memory) * step_seconds * steps
        self._steps = memory * self._steps + (1 - memory) * steps
        self._tokens = memory * self._tokens + (1 - memory) * tokens
        self._divide()

    def _divide(self) -> None:
        self.seconds = self._seconds / self._steps if self._steps else None
        self.tokens_per_second = self._tokens / self._seconds if self._seconds else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens in a step; 0 until the first report."""
        return self._tokens / self._steps if self._steps else 0.0


@dataclass(slots=True)
class SizedSpread:
    """Moving average and mean deviation of seconds that may grow with a fragment's size.

    A line is fitted to them: a round trip costs every fragment the same, bytes cost the larger ones more. Mean and
    deviation are those of a fragment of mean size, computed as TCP does for round trips (RFC 6298). Sizes are relative
    to the mean. If all are alike, the slope stays 0.
    """

    mean: float | None = None
    """Of a fragment of mean size; None until the first measurement."""
    deviation: float = 0.0
    """From the line."""
    slope: float = 0.0
    """Additional seconds for each additional mean size; between 0 and ``mean``, as the time before the first byte
    cannot be negative."""
    _size: float = 0.0
    _seconds: float = 0.0
    _size_variance: float = 0.0
    _covariance: float = 0.0

    def add(self, seconds: float, size: float = 1.0) -> None:
        """Add a measurement. Negative or non-finite ones are ignored."""
        if not 0 <= seconds < float("inf"):
            return
        if self.mean is None:
            self.mean, self.deviation = seconds, seconds / 2
            self._size, self._seconds = size, seconds
            return
        self._regress(seconds, size)
        off = seconds - self.of(size)
        self.deviation = DEVIATION_MEMORY * self.deviation + (1 - DEVIATION_MEMORY) * abs(off)
        self.mean = max(0.0, self.mean + (1 - MEMORY) * off)
        self.slope = min(self.slope, self.mean)

    def at_least(self, seconds: float, size: float = 1.0) -> None:
        """Add a duration that was only observed in part: at least ``seconds``.

        For a fragment above mean size it is attributed to the size, as far as that explains it.
        """
        if not 0 <= seconds < float("inf") or (self.mean is not None and self.of(size) >= seconds):
            return
        if self.mean is None:
            self.mean, self._size, self._seconds = 0.0, size, seconds
        self.deviation = max(self.deviation, seconds / 2)
        if size > 1.0:
            self.mean = max(self.mean, seconds / size)
            self.slope = (seconds - self.mean) / (size - 1.0)
            self._size_variance = max(self._size_variance, (1 - SLOPE_MEMORY) * (size - 1.0) ** 2)
            self._covariance = self.slope * self._size_variance
        else:
            self.mean = seconds + self.slope * (1.0 - size)

    def of(self, size: float) -> float:
        """Expected duration for a fragment of ``size``; 0 if nothing is measured."""
        return (self.mean or 0.0) + self.slope * (size - 1.0)

    def _regress(self, seconds: float, size: float) -> None:
        """Update the slope by least squares with exponentially decaying weights."""
        assert self.mean is not None
        step = 1 - SLOPE_MEMORY
        longer, larger = seconds - self._seconds, size - self._size
        self._size += step * larger
        self._seconds += step * longer
        self._size_variance = SLOPE_MEMORY * (self._size_variance + step * larger * larger)
        self._covariance = SLOPE_MEMORY * (self._covariance + step * larger * longer)
        if self._size_variance > LEAST_SIZE_VARIANCE:
            self.slope = min(max(0.0, self._covariance / self._size_variance), self.mean)
