"""Handlers of the signals that ask a process to stop, which a loop's framework may replace."""

import signal
import threading

from diloco.runtime.process.exits import STOP_SIGNALS


class StopHandlers:
    """Those that were set when this was made."""

    def __init__(self) -> None:
        self._handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore(self) -> None:
        """Set them again, in the main thread: no other can.

        A framework's may call collectives, as Lightning's does, which the other processes do not call then.
        """
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
