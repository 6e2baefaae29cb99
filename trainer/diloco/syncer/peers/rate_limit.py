"""How fast a session is read: what one learner says is on the tape and in the engine, so it may not say too much.

A peer that is faster than this is read later, which its own connection makes it wait for; honest ones replace what
waits by newer reports. Pure but for the clock that it is given.
"""

from collections.abc import Callable
from typing import Final

A_SECOND: Final = 1000.0
"""Messages of a learner; a step of two milliseconds with two fragments each makes as many."""
AT_ONCE: Final = 2000.0


class Tempo:
    """Of one session: a bucket of ``AT_ONCE`` messages that fills with ``A_SECOND``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds, never running backwards."""
        self._clock = clock
        self._room = AT_ONCE
        self._at = clock()

    def wait_seconds(self) -> float:
        """How long to wait before the message that has come is taken in; mostly 0."""
        now = self._clock()
        self._room = min(AT_ONCE, self._room + A_SECOND * (now - self._at)) - 1.0
        self._at = now
        return max(0.0, -self._room / A_SECOND)
