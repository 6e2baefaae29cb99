"""Wakes the inner loop when it has nothing better to do than wait. It must not know what for."""

import threading
import time


class Wakeup:
    """Counts its notices, so that one between looking and waiting is not missed.

    Notified by other threads and by signal handlers (its lock is re-entrant); waited for by the inner loop's thread.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._notices = 0

    @property
    def notices(self) -> int:
        """Take this before looking; hand it to ``wait``."""
        return self._notices

    def notify(self) -> None:
        """Something is there to look at."""
        with self._condition:
            self._notices += 1
            self._condition.notify_all()

    def wait(self, since: int, timeout_seconds: float) -> None:
        """Until there was a notice since ``since`` was taken, or the time is up."""
        until = time.monotonic() + timeout_seconds
        with self._condition:
            while self._notices == since and (rest := until - time.monotonic()) > 0:
                self._condition.wait(rest)
