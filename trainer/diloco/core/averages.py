"""Moving averages of the durations that the engine steers by (paper: the xi of Eq. 3)."""

from dataclasses import dataclass

MEMORY = 0.8
"""Share of the old average that stays when a measurement comes in (ours): it forgets a burst in about ten."""


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
