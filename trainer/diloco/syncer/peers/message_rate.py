"""Limits how fast a session is read, since every message costs the tape and the engine.

Messages beyond the limit are read later, so that flow control slows the connection down; a correct learner replaces
waiting reports by newer ones. Pure, except for the clock that is passed in.
"""

from collections.abc import Callable
from typing import Final

A_SECOND: Final = 1000.0
"""Messages per second from a learner: as many as a learner sends with two fragments in each 2 ms step."""
AT_ONCE: Final = 2000.0


class TokenBucket:
    """The token bucket of one session: holds ``AT_ONCE`` messages, refills ``A_SECOND`` per second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds and never goes back."""
        self._clock = clock
        self._room = AT_ONCE
        self._at = clock()

    def wait_seconds(self) -> float:
        """How long to wait before processing the message that has come; usually 0."""
        now = self._clock()
        self._room = min(AT_ONCE, self._room + A_SECOND * (now - self._at)) - 1.0
        self._at = now
        return max(0.0, -self._room / A_SECOND)
