"""Decides which learners load the model at the same time, so that a hundred that return at once slow nobody down. Pure.

A learner that loads pulls every fragment; many at once would share the syncer's link among them, and the merged
fragments of those that train would be a small part of what is sent. So a learner has a place while it loads, and the
others wait in the order in which they first asked. A place is held for a turn at a time: when others wait, a learner
whose turn is over waits behind them for the next. So one that reads slowly, whatever the reason, holds no place for
longer, and the transfer that it has begun goes on beside the others.
"""

import itertools
from collections.abc import Collection
from typing import Final

MOST_PLACES: Final = 16
"""Learners that load at the same time (ours)."""
TURN_SECONDS: Final = 5.0
"""After so long a place goes to the next that waits (ours)."""


class LoadPlaces:
    """The places, and the line for them. Times are in seconds of the caller's clock."""

    def __init__(self, most: int = MOST_PLACES, turn_seconds: float = TURN_SECONDS) -> None:
        """At most ``most`` learners have a turn of ``turn_seconds`` at the same time."""
        self._most = most
        self._turn_seconds = turn_seconds
        self._loading: set[str] = set()
        self._turns: dict[str, float] = {}
        """Learner -> when its turn is over."""
        self._line: dict[str, int] = {}
        """Learner -> its number in the line, which it keeps while it tries again."""
        self._numbers = itertools.count()

    def begin(self, learner: str) -> None:
        """Note that a learner was admitted and has to load; in a new session it stands at the end of the line."""
        self.end(learner)
        self._loading.add(learner)

    def end(self, learner: str) -> None:
        """Note that a learner has the model, or that its session is over."""
        self._loading.discard(learner)
        self._turns.pop(learner, None)
        self._line.pop(learner, None)

    def loads(self, learner: str) -> bool:
        """Whether a learner was admitted and does not have the model yet."""
        return learner in self._loading

    def must_wait(self, learner: str, now: float) -> bool:
        """Whether a learner that wants to pull a fragment has to wait for a turn: it then stands in the line."""
        if learner not in self._loading or now < self._turns.get(learner, now):
            return False
        self._turns.pop(learner, None)
        self._line.setdefault(learner, next(self._numbers))
        return True

    def grant(self, waiting: Collection[str], now: float) -> list[str]:
        """Begin the turns of those that are first in the line, of the learners that are waiting now; returns them."""
        self._turns = {learner: until for learner, until in self._turns.items() if now < until}
        there = sorted((learner for learner in waiting if learner in self._line), key=lambda one: self._line[one])
        granted = there[: max(0, self._most - len(self._turns))]
        for learner in granted:
            del self._line[learner]
            self._turns[learner] = now + self._turn_seconds
        return granted

    def next_free_at(self) -> float | None:
        """When the next turn is over; None: nobody has one."""
        return min(self._turns.values(), default=None)

    def ahead_of(self, learner: str) -> int:
        """Number of learners in the line before this one."""
        mine = self._line.get(learner, 0)
        return sum(number < mine for number in self._line.values())

    @property
    def in_line(self) -> int:
        """Number of learners that wait or will ask again."""
        return len(self._line)
