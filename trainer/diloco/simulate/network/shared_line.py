"""A line whose transfers share its rate evenly in virtual time, such as a region's link or the syncer's."""

import heapq
from collections.abc import Callable
from functools import partial
from math import inf

from diloco.simulate.network.clock import VirtualClock

_PRECISION = 1e-12
"""Of virtual time, as a share of it."""


class SharedLine:
    """One direction of a line whose transfers share its rate evenly.

    All transfers under way have received as much since the line began, so one number, the bytes that each has received,
    says when each of them is complete.
    """

    def __init__(self, clock: VirtualClock, bytes_per_second: float) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._received = 0.0
        self._at = 0.0
        self._numbered = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        """By the bytes received at which a transfer is complete; some were dropped."""
        self._dropped = set[int]()
        self._looks_at = inf
        """When it next looks whether a transfer is complete; others that began since may have delayed it."""

    def carry(self, size_bytes: int, done: Callable[[], None]) -> Callable[[], float]:
        """Begin a transfer, and call ``done`` when it is complete.

        Returns a function that drops it, and returns its bytes that were not carried.
        """
        self._advance()
        self._numbered += 1
        number = self._numbered
        heapq.heappush(self._due, (self._received + size_bytes, number, done))
        if self._due[0][1] == number:
            self._schedule()
        return partial(self._drop, number)

    def _drop(self, number: int) -> float:
        for complete_at, under_way, _ in self._due:
            if under_way == number:
                self._advance()
                self._dropped.add(number)
                self._schedule()
                return max(0.0, complete_at - self._received)
        return 0.0

    def _advance(self) -> None:
        now, sharers = self._clock.now, len(self._due) - len(self._dropped)
        if sharers:
            self._received += (now - self._at) * self._bytes_per_second / sharers
        self._at = now

    def _left(self) -> float:
        """Seconds until the next transfer is complete if none is added; infinite: there is none."""
        due, dropped = self._due, self._dropped
        while dropped and due and due[0][1] in dropped:
            dropped.discard(heapq.heappop(due)[1])
        if not due:
            return inf
        left_bytes = due[0][0] - self._received
        return left_bytes * (len(due) - len(dropped)) / self._bytes_per_second if left_bytes > 0 else 0.0

    def _schedule(self) -> None:
        at = self._clock.now + self._left()
        if at < self._looks_at:
            self._looks_at = at
            self._clock.at(at, partial(self._look, at))

    def _look(self, at: float) -> None:
        if at != self._looks_at:
            return
        self._looks_at = inf
        self._advance()
        over = []
        # Not less than the precision of the clock, or it would never be complete.
        while self._left() <= _PRECISION * (1.0 + at):
            self._received = max(self._received, self._due[0][0])
            over.append(heapq.heappop(self._due)[2])
        self._schedule()
        for done in over:
            done()
