"""Waits for a cluster: for an event and not for a time, so that only an event that never comes is a failure."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WAIT_SECONDS = 300.0
"""For anything to happen: six times what the slowest recovery takes alone, that of a lost node. It is told after 16 s
and given up after 10 s more; a pod starts elsewhere and trains in 20 s. Reached only where something is broken."""
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 1.0
_PART_OF_THE_WAIT = 0.05
"""A look takes some of the machine from what is waited for: the longer the wait, the fewer."""


def wait_until(read: Callable[[], T], what: str = "", timeout_seconds: float = WAIT_SECONDS) -> T:
    """The first value of ``read`` that is true; ``what`` says what is awaited.

    Raises:
        AssertionError: There was none in ``timeout_seconds``; it has the value last seen.
    """
    return wait_for(read, bool, what or str(read), timeout_seconds)


def wait_for(
    read: Callable[[], T | None], holds: Callable[[T], bool], what: str, timeout_seconds: float = WAIT_SECONDS
) -> T:
    """The first value of ``read`` for which it holds; otherwise as ``wait_until``."""
    start = time.monotonic()
    while (value := read()) is None or not holds(value):
        waited = time.monotonic() - start
        assert waited < timeout_seconds, f"not within {timeout_seconds:.0f} s: {what}; last seen: {value!r}"
        time.sleep(min(max(_FIRST_PAUSE_SECONDS, _PART_OF_THE_WAIT * waited), _LONGEST_PAUSE_SECONDS))
    return value
