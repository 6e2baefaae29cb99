"""Wakes the inner loop while it waits."""

import threading
import time


class Wakeup:
    """Counts its notices, so that one given between checking and waiting is not missed.

    Notified by other threads and by signal handlers (its lock is re-entrant); waited for by the inner loop's thread.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.notices = 0
        """The count of notices. Read it before checking, and pass it to ``wait``."""

    def notify(self) -> None:
        """Say that there is something to check."""
        with self._condition:
            self.notices += 1
            self._condition.notify_all()

    def wait(self, since: int, timeout_seconds: float) -> None:
        """Wait until a notice was given after ``since`` was read, or the time is up."""
        until = time.monotonic() + timeout_seconds
        with self._condition:
            while self.notices == since and (rest := until - time.monotonic()) > 0:
                self._condition.wait(rest)
