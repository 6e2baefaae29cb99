"""A connection between a learner and the syncer in virtual time, with latency and bandwidth, that can break.

Control messages take only the latency; fragments are sent one after the other in each direction, as on a link of
limited bandwidth: outer gradients in the order in which they were requested, merged fragments the newest first.
Transfers that are under way when the connection breaks never arrive.
"""

from collections.abc import Callable
from enum import Enum

from diloco.simulate.clock import VirtualClock
from diloco.simulate.scenario import Link


class Way(Enum):
    """Direction of a transfer."""

    UP = "up"
    DOWN = "down"


Transfer = Callable[[], tuple[int, Callable[[], None]]]
"""Called when a transfer begins; returns its bytes, and a function to call when it has arrived."""


class Connection:
    """One session and its bulk transfers. A learner that reconnects opens another."""

    def __init__(self, clock: VirtualClock, link: Link) -> None:
        self._clock = clock
        self._link = link
        self._waiting: dict[Way, dict[int, Transfer]] = {way: {} for way in Way}
        self._busy = dict.fromkeys(Way, False)
        self.open = True

    def send(self, deliver: Callable[[], None]) -> None:
        """Deliver a control message."""
        self._arrive(self._clock.now + self._link.latency_seconds, deliver)

    def transfer(self, way: Way, fragment: int, begin: Transfer) -> None:
        """Send a fragment when its turn comes; it replaces one of that number that still waits."""
        self._waiting[way].pop(fragment, None)
        self._waiting[way][fragment] = begin
        if not self._busy[way]:
            self._next(way)

    def cancel(self, way: Way, fragment: int) -> None:
        """Drop a fragment that still waits."""
        self._waiting[way].pop(fragment, None)

    def _next(self, way: Way) -> None:
        waiting = self._waiting[way]
        self._busy[way] = bool(waiting) and self.open
        if not self._busy[way]:
            return
        fragment = next(iter(waiting)) if way == Way.UP else next(reversed(waiting))
        size_bytes, deliver = waiting.pop(fragment)()
        sent_at = self._clock.now + size_bytes / self._link.bytes_per_second
        self._clock.at(sent_at, lambda: self._next(way))
        self._arrive(sent_at + self._link.latency_seconds, deliver)

    def close(self) -> None:
        """Break the connection."""
        self.open = False

    def _arrive(self, when: float, deliver: Callable[[], None]) -> None:
        def arrive() -> None:
            if self.open:
                deliver()

        self._clock.at(when, arrive)
