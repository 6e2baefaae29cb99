"""How long a transfer may take, from the rate of earlier transfers.

A fixed deadline would be too short for a slow link or a large model, and on a fast link so long that a dead connection
is noticed late. This one follows the measured rate, with a margin, and grows after each missed deadline, so that a
fragment still gets through on a link that has become ten times slower.
"""

import math
import threading

FLOOR_SECONDS = 20.0
"""Least deadline (ours): a small fragment's time is mostly latency and the other side's work."""
LIMIT_SECONDS = 3600.0
_ROOM = 8.0
"""A deadline is this many times the expected duration."""
_FLOOR_STEPS = 10.0
"""Least deadline in inner steps: a delay of so few steps does not matter to a learner that is this slow."""
_FIRST_RATE = 1 << 20
"""Bytes per second assumed before the first measurement."""
_LEAST_RATE = 1 << 10
_NEWEST = 0.3
"""Weight of the newest measurement in the moving average."""
_MEASURABLE_BYTES = 1 << 16
"""Smaller transfers measure no rate: the link has at least theirs."""


class TransferDeadlines:
    """Deadlines for one direction. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rate = float(_FIRST_RATE)
        self._measured = False
        self._missed_at = -math.inf

    def seconds(self, transfer_bytes: int, step_seconds: float) -> float:
        """Deadline for a transfer, given the duration of an inner step."""
        with self._lock:
            expected = transfer_bytes / self._rate
        return min(LIMIT_SECONDS, max(FLOOR_SECONDS, _FLOOR_STEPS * step_seconds) + _ROOM * expected)

    def took(self, transfer_bytes: int, seconds: float) -> None:
        """Note that a transfer succeeded, and how long it took."""
        rate = transfer_bytes / max(seconds, 1e-6)
        with self._lock:
            if transfer_bytes < _MEASURABLE_BYTES:
                self._rate = max(self._rate, rate)
                return
            self._rate = rate if not self._measured else (1 - _NEWEST) * self._rate + _NEWEST * rate
            self._measured = True

    def missed(self, began: float, now: float) -> None:
        """Note that a transfer that ``began`` then missed its deadline, in seconds of a clock.

        All that are under way while the process is frozen or its link cut miss theirs together, which counts once.
        """
        with self._lock:
            if began >= self._missed_at:
                self._rate, self._missed_at = max(_LEAST_RATE, self._rate / 2), now

    @property
    def bytes_per_second(self) -> float | None:
        """The moving average; None before the first measurement."""
        with self._lock:
            return self._rate if self._measured else None
