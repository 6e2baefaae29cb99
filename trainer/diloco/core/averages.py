"""Moving averages of the durations that the engine steers by (paper: the xi of Eq. 3)."""

from dataclasses import dataclass

MEMORY = 0.8
"""Share of the old average that stays when a measurement comes in (ours): it forgets a burst in about ten."""
DEVIATION_MEMORY = 0.75
"""The same for deviations (RFC 6298, section 2.3)."""


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
class MovingSpread:
    """Moving average and mean deviation of seconds, as TCP keeps them of round trips (RFC 6298)."""

    mean: float | None = None
    deviation: float = 0.0

    def add(self, seconds: float) -> None:
        """Take in a measurement. Negative or not finite ones are left out."""
        if not 0 <= seconds < float("inf"):
            return
        if self.mean is None:
            self.mean, self.deviation = seconds, seconds / 2
            return
        off = abs(seconds - self.mean)
        self.deviation = DEVIATION_MEMORY * self.deviation + (1 - DEVIATION_MEMORY) * off
        self.mean = MEMORY * self.mean + (1 - MEMORY) * seconds

    def at_least(self, seconds: float) -> None:
        """It took longer than can be measured: at least ``seconds``."""
        if 0 <= seconds < float("inf") and (self.mean is None or self.mean < seconds):
            self.mean = seconds
            self.deviation = max(self.deviation, seconds / 2)
