"""Measures for how long any transfer was under way; time with several at once counts once."""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moved:
    """What was transferred so far, and the time in which any of it was under way."""

    busy_seconds: float = 0.0
    bytes: int = 0


class BusyMeter:
    """Bytes, and the time in which any were being transferred. Used by several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds of a monotonic clock."""
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way = 0
        self._since = 0.0
        self._busy_seconds = 0.0
        self._bytes = 0

    def begin(self) -> None:
        """Note that a transfer begins."""
        with self._lock:
            if self._under_way == 0:
                self._since = self._clock()
            self._under_way += 1

    def end(self, moved_bytes: int) -> None:
        """Note that a transfer is over, and its bytes."""
        with self._lock:
            self._bytes += moved_bytes
            self._under_way -= 1
            if self._under_way == 0:
                self._busy_seconds += self._clock() - self._since

    def read(self) -> Moved:
        """The current values. The time of a running transfer counts already, its bytes once it is over."""
        with self._lock:
            going_on = self._clock() - self._since if self._under_way else 0.0
            return Moved(self._busy_seconds + going_on, self._bytes)
