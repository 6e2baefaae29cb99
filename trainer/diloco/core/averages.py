"""Moving averages of the durations that the engine steers by (paper: the xi of Eq. 3)."""

from dataclasses import dataclass

MEMORY = 0.8
"""Share of the old average that stays when a measurement comes in (ours): it forgets a burst in about ten."""
DEVIATION_MEMORY = 0.75
"""The same for deviations (RFC 6298, section 2.3)."""
SLOPE_MEMORY = 0.95
"""The same for what sizes cost, for which more measurements are needed (ours)."""
LEAST_SIZE_VARIANCE = 1e-4
"""Of sizes relative to their mean: where they differ less, no slope can be told from noise (ours)."""


@dataclass(slots=True)
class MovingAverage:
    """Exponential moving average of seconds; ``None`` until the first measurement."""

    seconds: float | None = None

    def add(self, seconds: float) -> None:
        """Take in a measurement. Negative or not finite ones are a shell's clock gone wrong and are left out."""
        if not 0 <= seconds < float("inf"):
            return
        self.seconds = seconds if self.seconds is None else MEMORY * self.seconds + (1 - MEMORY) * seconds

    def or_else(self, seconds: float) -> float:
        """The average, or ``seconds`` where nothing is measured yet."""
        return seconds if self.seconds is None else self.seconds


@dataclass(slots=True)
class SizedSpread:
    """Moving average and mean deviation of seconds that may grow with a fragment's size.

    A line is fitted to them: a round trip costs every fragment the same, bytes cost the larger ones more. Mean and
    deviation are kept as TCP keeps them of round trips (RFC 6298), of what a fragment of mean size would have taken.
    Sizes are relative to the mean. Where all are alike, the slope stays 0.
    """

    mean: float | None = None
    """Of a fragment of mean size; None until the first measurement."""
    deviation: float = 0.0
    """From the line."""
    slope: float = 0.0
    """Seconds that a fragment takes longer for each mean size more; between 0 and ``mean``, as time before the first
    byte cannot be negative."""
    _size: float = 0.0
    _seconds: float = 0.0
    _size_variance: float = 0.0
    _covariance: float = 0.0

    def add(self, seconds: float, size: float = 1.0) -> None:
        """Take in a measurement. Negative or not finite ones are left out."""
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
        """It took longer than can be measured: at least ``seconds``.

        With a fragment above mean size this is put down to the size, as far as that explains it.
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
        """What a fragment of ``size`` is expected to take; 0 where nothing is measured."""
        return (self.mean or 0.0) + self.slope * (size - 1.0)

    def _regress(self, seconds: float, size: float) -> None:
        """Follow the slope by least squares with exponentially decaying weights."""
        assert self.mean is not None
        step = 1 - SLOPE_MEMORY
        longer, larger = seconds - self._seconds, size - self._size
        self._size += step * larger
        self._seconds += step * longer
        self._size_variance = SLOPE_MEMORY * (self._size_variance + step * larger * larger)
        self._covariance = SLOPE_MEMORY * (self._covariance + step * larger * longer)
        if self._size_variance > LEAST_SIZE_VARIANCE:
            self.slope = min(max(0.0, self._covariance / self._size_variance), self.mean)
