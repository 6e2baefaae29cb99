"""A learner's handle of a posted pull, with which other threads can withdraw it."""

import threading
from typing import Any


class Posting:
    """The handle of one posted pull. ``withdraw`` may be called by any thread, at any time, more than once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Any = None
        self.withdrawn = False

    def withdraw(self) -> None:
        """End the pull, whether it waits, receives or has not begun; the thread that pulls gets ``ClosedError``."""
        with self._lock:
            self.withdrawn = True
            call = self._call
        if call is not None:
            call.cancel()

    def begin(self, call: Any) -> None:
        """Note the pull's call. Called by the client."""
        with self._lock:
            self._call = call
            withdrawn = self.withdrawn
        if withdrawn:
            call.cancel()
