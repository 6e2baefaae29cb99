"""How long to wait before the next attempt: twice as long after each failure, up to a limit, with jitter.

The jitter keeps processes that failed together from retrying together. Pure: the random source is an argument.
"""

from collections.abc import Callable
from dataclasses import dataclass

_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """Growing intervals."""

    first_seconds: float
    most_seconds: float
    random: Callable[[], float]
    """Between 0 and 1; `no_jitter` where nobody else can fail at the same time."""

    def seconds(self, failures: int) -> float:
        """How long to wait after this many failures in a row (1 or more): between half and all of the interval."""
        whole = min(self.first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.most_seconds)
        return whole * (0.5 + 0.5 * self.random())


def no_jitter() -> float:
    """The whole interval each time."""
    return 1.0


class Retries:
    """A ``Backoff`` that counts the failures since the last success."""

    def __init__(self, backoff: Backoff) -> None:
        """Start with no failure."""
        self._backoff = backoff
        self._failures = 0

    def next_seconds(self) -> float:
        """Count one more failure; returns how long to wait."""
        self._failures += 1
        return self._backoff.seconds(self._failures)

    def worked(self) -> None:
        """Reset the count of failures."""
        self._failures = 0
