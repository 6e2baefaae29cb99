"""How long anything was under way, with several things at once counted once. It must not know what it is."""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved so far, and the time in which any of it was under way."""

    busy_seconds: float = 0.0
    bytes: int = 0


class BusyMeter:
    """Bytes, and the time in which any were on their way. Used by several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds of a monotonic clock."""
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way = 0
        self._since = 0.0
        self._busy_seconds = 0.0
        self._bytes = 0

    def begin(self) -> None:
        """A transfer begins."""
        with self._lock:
            if self._under_way == 0:
                self._since = self._clock()
            self._under_way += 1

    def end(self, moved_bytes: int) -> None:
        """A transfer that began is over, with so many bytes moved."""
        with self._lock:
            self._bytes += moved_bytes
            self._under_way -= 1
            if self._under_way == 0:
                self._busy_seconds += self._clock() - self._since

    def read(self) -> Moved:
        """As of now. The time of what is under way counts already, its bytes once it is over."""
        with self._lock:
            going_on = self._clock() - self._since if self._under_way else 0.0
            return Moved(self._busy_seconds + going_on, self._bytes)
