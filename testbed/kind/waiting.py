"""Waits for a cluster: for an event and not for a time, so that only an event that never comes is a failure."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.3


def wait_until(read: Callable[[], T], what: str = "", timeout_seconds: float = 60) -> T:
    """The first value of ``read`` that is true; ``what`` says what is awaited.

    Raises:
        AssertionError: There was none in ``timeout_seconds``; it has the value last seen.
    """
    end = time.monotonic() + timeout_seconds
    while not (value := read()):
        assert time.monotonic() < end, f"not within {timeout_seconds:.0f} s: {what or read}; last seen: {value!r}"
        time.sleep(_POLL_SECONDS)
    return value
