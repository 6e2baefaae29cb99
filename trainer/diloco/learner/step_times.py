"""How long steps take: the usual duration, and the pause after a step by which a learner acts slower hardware."""

import time
from collections import deque
from statistics import median
from typing import Final

_RECENT_STEPS: Final = 9
"""Whose median is the usual duration of a step: one that spans a freeze of the process lasts as long as that (ours)."""
_LONG_STEP: Final = 2.0
"""As a multiple of the usual step: what is longer was held up, which slower hardware does not make longer (ours)."""


class StepTimes:
    """Written by the inner loop's thread; others may read ``usual_seconds``."""

    def __init__(self, speed: float, *, on_cpu: bool) -> None:
        """``speed``: 0.5 acts hardware half as fast. ``on_cpu``: whether the loop's thread computes the steps."""
        self._speed, self._on_cpu = speed, on_cpu
        self._recent_seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._computed_seconds = 0.0
        """By this thread, when the step began."""
        self.usual_seconds = 0.0
        """Of a step at this speed, whatever one step was held up by; 0 before the first."""

    def begin(self) -> None:
        """Note that a step begins."""
        self._computed_seconds = time.thread_time()

    def made(self, seconds: float, steps: int, *, skipped: bool) -> float:
        """Count ``steps`` that took ``seconds`` together; returns for how many seconds to pause after them.

        Skipped ones say nothing about the usual duration.
        """
        own_seconds = seconds
        if self._on_cpu:
            # What others compute meanwhile is not its own slowness.
            own_seconds = min(own_seconds, time.thread_time() - self._computed_seconds)
        longer = 1.0 / self._speed - 1.0
        # A process that was frozen, or a machine that is busy for a moment, must not hold it up many times as long. In
        # its first step nothing is known to be usual.
        stretched = min(own_seconds, _LONG_STEP * self._speed * self.usual_seconds * steps)
        if not skipped:
            self._recent_seconds.append((seconds + own_seconds * longer) / steps)
            self.usual_seconds = median(self._recent_seconds)
        return stretched * longer
