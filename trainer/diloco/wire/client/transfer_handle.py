"""A learner's handle of a transfer, with which other threads can withdraw it."""

import threading
from typing import Any


class TransferHandle:
    """The handle of one push or pull. ``withdraw`` may be called by any thread, at any time, more than once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Any = None
        self.withdrawn = False

    def withdraw(self) -> None:
        """End the transfer, whether it waits, goes on or has not begun; its thread gets ``ClosedError``."""
        with self._lock:
            self.withdrawn = True
            call = self._call
        if call is not None:
            call.cancel()

    def begin(self, call: Any) -> None:
        """Note the transfer's call, of each attempt. Called by the client."""
        with self._lock:
            self._call = call
            withdrawn = self.withdrawn
        if withdrawn:
            call.cancel()
