"""Measures how late an event loop is, for health pages and metrics."""

import asyncio
import time
from collections.abc import Callable

_BEAT_SECONDS = 0.25


class Heartbeat:
    """Runs on the event loop; read from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds and never goes back."""
        self._clock = clock
        self._beat_at = clock()
        self._late_seconds = 0.0

    @property
    def lag_seconds(self) -> float:
        """How late the latest beat was, or how late the next one is now, whichever is more."""
        return max(self._late_seconds, self._clock() - self._beat_at - _BEAT_SECONDS, 0.0)

    async def run(self) -> None:
        """Beat until cancelled."""
        self._beat_at = self._clock()
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            now = self._clock()
            self._late_seconds = max(0.0, now - self._beat_at - _BEAT_SECONDS)
            self._beat_at = now
