"""Virtual time: a heap of scheduled callbacks.

Callbacks of the same time run in the order in which they were scheduled, so a run depends on its inputs alone.
"""

import heapq
from collections.abc import Callable
from typing import Protocol


class Breakable(Protocol):
    """A connection, or a transfer over one."""

    @property
    def open(self) -> bool:
        """Whether what it carries arrives."""


class VirtualClock:
    """Seconds since the start of the simulated run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.happened = 0
        """Callbacks that were due."""
        self._scheduled = 0
        self._stopped = False
        self._due: list[tuple[float, int, Callable[[], None], Breakable | None]] = []

    def at(self, when: float, what: Callable[[], None], over: Breakable | None = None) -> None:
        """Run ``what`` at ``when`` seconds, or at once (after everything already due now) if that has passed.

        What comes ``over`` a connection does not run if that is broken by then.
        """
        self._scheduled += 1
        heapq.heappush(self._due, (max(when, self.now), self._scheduled, what, over))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Run ``what`` in ``seconds``."""
        self.at(self.now + seconds, what)

    def stop(self) -> None:
        """Run no callback after the current one."""
        self._stopped = True

    def run(self, until: float, most: float) -> bool:
        """Run the next callbacks until it is stopped, up to the first one after ``until`` seconds and at most so many.

        Returns whether any is left to run.
        """
        due, pop = self._due, heapq.heappop
        while due and most > 0 and self.now <= until and not self._stopped:
            self.now, _, what, over = pop(due)
            if over is None or over.open:
                what()
            most -= 1
            self.happened += 1
        return bool(due) and not self._stopped
