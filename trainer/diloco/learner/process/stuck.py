"""Ends this process when the syncer has found it stuck, even if its training thread never returns.

A thread that hangs in a kernel or in a read cannot be ended, and the interpreter waits for it. So the process ends
without cleaning up: what it holds is of no use, and what it has written is whole, because files are renamed when they
are complete.
"""

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from diloco.learner.exchange.orders import Ending, Orders
from diloco.runtime.process.abrupt_end import end_abruptly
from diloco.runtime.process.exits import EXIT_STUCK

_log = logging.getLogger(__name__)

_END_SECONDS = 5.0
"""Time for the training thread to return by itself, which a slow one does."""


@contextmanager
def ended_if_stuck(
    orders: Orders, exit_process: Callable[[int], object] = os._exit, end_seconds: float = _END_SECONDS
) -> Iterator[None]:
    """Inside, call ``exit_process(EXIT_STUCK)`` once ``orders`` has said for ``end_seconds`` that it is stuck."""
    timers: list[threading.Timer] = []

    def begin(ending: Ending) -> None:
        arguments = EXIT_STUCK, partial(_tell, ending), exit_process
        timers.append(threading.Timer(end_seconds, end_abruptly, arguments))
        timers[-1].daemon = True
        timers[-1].start()

    orders.when_stuck = begin
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def _tell(ending: Ending) -> None:
    """Write where every thread is, and why the process ends."""
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
    _log.error("ending: %s; the training thread does not return, and is where the lines above say", ending.reason)
