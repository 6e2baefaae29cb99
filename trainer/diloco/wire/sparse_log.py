"""Lines about what strangers do: as many as somebody may read, and how many there were beside them.

Whoever connects can make a call fail, thousands of times a second; the log's disk is not theirs to fill. It must not
know what the lines say.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

_SPAN_SECONDS: Final = 60.0
_LINES: Final = 200
"""In a span."""


class SparseLog:
    """Hands lines on to a logger until a span has had its share."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds, never running backwards."""
        self._logger = logger
        self._clock = clock
        self._since = clock()
        self._told = self._left_out = 0

    def log(self, level: int, text: str, *values: object) -> None:
        """A line, or nothing."""
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
