"""A connection between a learner and the syncer in virtual time, with latency and bandwidth, that can break.

Control messages take only the latency; fragments are sent one after the other in each direction, as on a link of
limited bandwidth: outer gradients in the order in which they were requested, merged fragments the newest first.
Transfers that are under way when the connection breaks never arrive.
"""

from collections.abc import Callable

from diloco.simulate.clock import VirtualClock
from diloco.simulate.scenario import Link

Transfer = Callable[[], tuple[int, Callable[[], None]]]
"""Called when a transfer begins; returns its bytes, and a function to call when it has arrived."""


class Connection:
    """One session and its bulk transfers. A learner that reconnects opens another."""

    def __init__(self, clock: VirtualClock, link: Link) -> None:
        self.clock = clock
        self.link = link
        self.up, self.down = Direction(self, newest_first=False), Direction(self, newest_first=True)
        self.open = True

    def send(self, deliver: Callable[[], None]) -> None:
        """Deliver a control message."""
        self.arrive(self.clock.now + self.link.latency_seconds, deliver)

    def close(self) -> None:
        """Break the connection."""
        self.open = False

    def arrive(self, when: float, deliver: Callable[[], None]) -> None:
        """Deliver something at ``when`` seconds, unless the connection is broken by then."""
        self.clock.at(when, deliver, self)


class Direction:
    """One direction's transfers."""

    def __init__(self, connection: Connection, *, newest_first: bool) -> None:
        self._connection = connection
        self._newest_first = newest_first
        self._waiting: dict[int, Transfer] = {}
        self._free_at = 0.0
        """When the latest transfer has been sent."""
        self._will_go_on = False

    def transfer(self, fragment: int, begin: Transfer) -> None:
        """Send a fragment when its turn comes; it replaces one of that number that still waits."""
        self._waiting.pop(fragment, None)
        self._waiting[fragment] = begin
        if not self._will_go_on:
            self._next()

    def cancel(self, fragment: int) -> None:
        """Drop a fragment that still waits."""
        self._waiting.pop(fragment, None)

    def _next(self) -> None:
        waiting, connection = self._waiting, self._connection
        if waiting and connection.open and connection.clock.now >= self._free_at:
            fragment = next(reversed(waiting)) if self._newest_first else next(iter(waiting))
            size_bytes, deliver = waiting.pop(fragment)()
            self._free_at = connection.clock.now + size_bytes / connection.link.bytes_per_second
            connection.arrive(self._free_at + connection.link.latency_seconds, deliver)
        self._will_go_on = bool(waiting) and connection.open
        if self._will_go_on:
            connection.clock.at(self._free_at, self._next)
