"""A clock that a test moves."""


class HandClock:
    """Seconds of a monotonic clock."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time."""
        return self.now
