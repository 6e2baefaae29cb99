"""How long a transfer may take, from how fast transfers were.

A fixed deadline is too short on a slow link or for a large model, and so long on a fast one that a dead connection
is noticed late. This one follows the measured rate, with room, and grows after a deadline was missed, so that even on
a link that became ten times slower a fragment gets through in the end. It must not know what is transferred.
"""

import threading

FLOOR_SECONDS = 20.0
"""No transfer gets less (ours): a small fragment's time is latency and the other side's work, not bytes."""
LIMIT_SECONDS = 3600.0
_ROOM = 8.0
"""Times the expected duration that is allowed."""
_FLOOR_STEPS = 10.0
"""Inner steps that a transfer gets at least: what a learner that slow does not mind."""
_FIRST_RATE = 1 << 20
"""Bytes a second assumed before the first measurement."""
_LEAST_RATE = 1 << 10
_NEWEST = 0.3
"""Share of the newest measurement in the moving average."""
_MEASURABLE_BYTES = 1 << 16
"""Smaller transfers say nothing about the link's rate."""


class TransferDeadlines:
    """Deadlines for one direction. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rate = float(_FIRST_RATE)
        self._measured = False

    def seconds(self, transfer_bytes: int, step_seconds: float) -> float:
        """Deadline for a transfer, given the duration of an inner step."""
        with self._lock:
            expected = transfer_bytes / self._rate
        return min(LIMIT_SECONDS, max(FLOOR_SECONDS, _FLOOR_STEPS * step_seconds) + _ROOM * expected)

    def took(self, transfer_bytes: int, seconds: float) -> None:
        """A transfer succeeded."""
        if transfer_bytes < _MEASURABLE_BYTES:
            return
        rate = transfer_bytes / max(seconds, 1e-6)
        with self._lock:
            self._rate = rate if not self._measured else (1 - _NEWEST) * self._rate + _NEWEST * rate
            self._measured = True

    def missed(self) -> None:
        """A transfer did not make its deadline."""
        with self._lock:
            self._rate = max(_LEAST_RATE, self._rate / 2)

    @property
    def bytes_per_second(self) -> float | None:
        """The moving average, once there is a measurement."""
        with self._lock:
            return self._rate if self._measured else None
