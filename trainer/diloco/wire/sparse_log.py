"""Limits log lines that unauthenticated peers can cause, and counts those that were left out.

Any client can make calls fail, thousands of times a second, and must not be able to fill the log's disk.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

_SPAN_SECONDS: Final = 60.0
_LINES: Final = 200
"""Lines per span of time."""


class SparseLog:
    """Passes on lines to a logger, up to a limit per span of time."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds and never goes back."""
        self._logger = logger
        self._clock = clock
        self._since = clock()
        self._told = self._left_out = 0

    def log(self, level: int, text: str, *values: object) -> None:
        """Log a line, unless the limit is reached."""
        if not self._logger.isEnabledFor(level):
            return
        now = self._clock()
        if now - self._since >= _SPAN_SECONDS:
            if self._left_out:
                seconds = now - self._since
                self._logger.warning("%d more calls ended in the last %.0f s", self._left_out, seconds)
            self._since, self._told, self._left_out = now, 0, 0
        if self._told >= _LINES:
            self._left_out += 1
            return
        self._told += 1
        self._logger.log(level, text, *values)
