"""Acts out slower hardware, so that one machine can stand for pools of different speed.

It must not know why: a factor, and a way to sleep that ends early when the process is asked to stop.
"""

from collections.abc import Callable
from typing import Final

LEAST_SPEED: Final = 0.001
"""Of hardware that is acted out (ours): a step then takes a thousand times as long."""


def sleep_for_speed(step_seconds: float, speed: float, sleep: Callable[[float], None]) -> float:
    """Sleep so that a step of ``step_seconds`` takes ``step_seconds / speed``; returns the seconds slept."""
    rest = step_seconds / speed - step_seconds
    if rest > 0:
        sleep(rest)
    return rest
