"""Acts out slower hardware, so that one machine can stand for pools of different speed.

It must not know why: a factor, and a way to sleep that ends early when the process is asked to stop.
"""

from collections.abc import Callable


def sleep_for_speed(step_seconds: float, speed: float, sleep: Callable[[float], None]) -> float:
    """Sleep so that a step of ``step_seconds`` takes ``step_seconds / speed``; returns the seconds slept."""
    rest = step_seconds / speed - step_seconds
    if rest > 0:
        sleep(rest)
    return rest
