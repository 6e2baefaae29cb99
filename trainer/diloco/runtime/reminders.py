"""When to log a problem that lasts: at once, when its text changes, and again after pauses that grow. Pure."""

from typing import Final

_LEAST_SECONDS: Final = 15.0
"""Least time between two lines, as the text may change with every attempt (ours)."""
_FIRST_SECONDS: Final = 60.0
_MOST_SECONDS: Final = 3600.0


class Reminder:
    """Of one problem at a time. The times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        """No problem yet."""
        self._said = ""
        self._said_at: float | None = None
        self._pause_seconds = _FIRST_SECONDS

    def may_speak(self, now: float) -> bool:
        """Whether a line may be due at ``now``, depending on its text."""
        return self._said_at is None or now - self._said_at >= _LEAST_SECONDS

    def due(self, text: str, now: float) -> bool:
        """Whether to log ``text`` at ``now``; if so, it counts as logged."""
        if not self.may_speak(now):
            return False
        if self._said_at is not None and text == self._said:
            if now - self._said_at < self._pause_seconds:
                return False
            self._pause_seconds = min(2 * self._pause_seconds, _MOST_SECONDS)
        else:
            self._pause_seconds = _FIRST_SECONDS
        self._said, self._said_at = text, now
        return True

    def over(self) -> None:
        """The problem is over; the next one is logged at once."""
        self._said_at = None
