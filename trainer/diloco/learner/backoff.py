"""How long to wait before the next attempt to reach the syncer.

Exponential, with jitter: learners that lost the syncer at one moment must not all come back at one moment. Pure: the
random numbers are an argument.
"""

from collections.abc import Callable


class Backoff:
    """Delays of 0.5 to 1 times ``first_seconds``, doubling up to ``limit_seconds``, until something worked."""

    def __init__(
        self, uniform: Callable[[], float], *, first_seconds: float = 0.25, limit_seconds: float = 8.0
    ) -> None:
        """``uniform`` returns numbers in [0, 1)."""
        self._uniform = uniform
        self._first_seconds = first_seconds
        self._limit_seconds = limit_seconds
        self._failures = 0

    def next_seconds(self) -> float:
        """Seconds to wait after one more failure."""
        # The exponent is held down, so that a week of failures does not overflow a float.
        whole = min(self._limit_seconds, self._first_seconds * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return whole * (0.5 + 0.5 * self._uniform())

    def worked(self) -> None:
        """The next failure is a first one again."""
        self._failures = 0
