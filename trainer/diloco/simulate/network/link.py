"""A connection between a learner and the syncer in virtual time, with latency and bandwidth, that can break.

Control messages take only the latency; fragments are sent one after the other in each direction, as on a link of
limited bandwidth: outer gradients in the order in which they were requested, merged fragments the newest first.
Transfers that are under way when the connection breaks never arrive. A connection may pass lines that it shares with
others, such as a region's link and the syncer's.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from diloco.simulate.network.clock import VirtualClock
from diloco.simulate.network.shared_line import SharedLine
from diloco.simulate.scenario import Link

Transfer = Callable[[], tuple[int, Callable[[], None]]]
"""Called when a transfer begins; returns its bytes, and a function to call when it has arrived."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The shared lines that a connection passes, each way."""

    up: Sequence[SharedLine] = ()
    down: Sequence[SharedLine] = ()


class Connection:
    """One session and its bulk transfers. A learner that reconnects opens another."""

    def __init__(
        self, clock: VirtualClock, link: Link, lines: Lines | None = None, delays: random.Random | None = None
    ) -> None:
        """``delays``: draws the jitter; None: there is none."""
        self.clock = clock
        self.link = link
        self._delays = delays
        passed = lines or Lines()
        self.up, self.down = (
            Direction(self, passed.up, newest_first=False),
            Direction(self, passed.down, newest_first=True),
        )
        self.open = True

    def send(self, deliver: Callable[[], None]) -> None:
        """Deliver a control message to the syncer."""
        self.up.arrive(deliver)

    def send_back(self, deliver: Callable[[], None]) -> None:
        """Deliver a control message to the learner."""
        self.down.arrive(deliver)

    def close(self) -> None:
        """Break the connection."""
        self.open = False
        self.up.drop()
        self.down.drop()

    def latency_seconds(self) -> float:
        """Of a message that is sent now."""
        link = self.link
        if self._delays is None or not link.jitter_seconds:
            return link.latency_seconds
        return link.latency_seconds + abs(self._delays.gauss(0.0, link.jitter_seconds))


@dataclass(slots=True)
class _UnderWay:
    """A transfer that has begun."""

    fragment: int
    deliver: Callable[[], None]
    sent_at: float
    """When its own connections have carried it."""
    connection: Connection
    parts: int
    """Shared lines that it has not passed yet."""
    drops: list[Callable[[], float]] = field(default_factory=list)
    """Drop it on a shared line each, and return the bytes that the line has not carried."""
    dropped: bool = False

    @property
    def open(self) -> bool:
        """Whether it can still arrive."""
        return self.connection.open and not self.dropped


class Direction:
    """One direction's messages and transfers."""

    def __init__(self, connection: Connection, lines: Sequence[SharedLine] = (), *, newest_first: bool) -> None:
        self._connection = connection
        self._lines = lines
        self._newest_first = newest_first
        self._waiting: dict[int, Transfer] = {}
        self._under_way: _UnderWay | None = None
        """The latest transfer that has begun; without shared lines it may be sent since."""
        self._looks_at = 0.0
        """When it next begins one that waits, if the one under way is sent at a known time."""
        self._arrives_at = 0.0
        self._sent_at = -1.0
        self._together: list[Callable[[], None]] | None = None
        """Messages of the latest moment at which any was sent, until they arrive."""

    def arrive(self, deliver: Callable[[], None]) -> None:
        """Deliver what is sent now after all that was sent before; not if the connection breaks.

        Messages of one moment travel together.
        """
        clock = self._connection.clock
        if self._together is not None and self._sent_at == clock.now:
            self._together.append(deliver)
            return
        self._sent_at, self._together = clock.now, [deliver]
        clock.at(self.arrival(), partial(self._deliver, self._together), self._connection)

    def _deliver(self, together: list[Callable[[], None]]) -> None:
        if self._together is together:
            self._together = None
        for deliver in together:
            if self._connection.open:
                deliver()

    def arrival(self) -> float:
        """When a message that is sent now arrives."""
        connection = self._connection
        self._arrives_at = max(self._arrives_at, connection.clock.now + connection.latency_seconds())
        return self._arrives_at

    def transfer(self, fragment: int, begin: Transfer) -> None:
        """Send a fragment when its turn comes; it replaces one of that number that still waits."""
        if not self._waiting and not self._busy() and self._connection.open:
            self._begin(fragment, begin)
            return
        self._waiting.pop(fragment, None)
        self._waiting[fragment] = begin
        self._next()

    def withdraw(self, fragment: int) -> float | None:
        """Drop a fragment that still waits or is under way.

        Returns its bytes that were not sent of a transfer that has begun; None: nothing of it waits or is under way.
        """
        if self._waiting.pop(fragment, None) is not None:
            return 0.0
        if not self._busy() or self._under_way is None or self._under_way.fragment != fragment:
            return None
        unsent = self.drop()
        self._next()
        return unsent

    def drop(self) -> float:
        """Drop the transfer that is under way. Returns its bytes that were not sent."""
        one = self._under_way if self._busy() else None
        self._under_way = None
        if one is None:
            return 0.0
        one.dropped = True
        left_seconds = one.sent_at - self._connection.clock.now
        own = left_seconds * self._connection.link.bytes_per_second if left_seconds > 0 else 0.0
        return max(own, *(drop() for drop in one.drops), 0.0)

    def _busy(self) -> bool:
        one = self._under_way
        return one is not None and (one.parts > 0 or one.sent_at > self._connection.clock.now)

    def _next(self) -> None:
        """Begin one that waits; or do so once the one under way is sent, if that time is known."""
        waiting, connection, one = self._waiting, self._connection, self._under_way
        if not waiting or not connection.open:
            return
        if not self._busy():
            fragment = next(reversed(waiting)) if self._newest_first else next(iter(waiting))
            self._begin(fragment, waiting.pop(fragment))
        elif one is not None and not one.parts and self._looks_at <= connection.clock.now:
            self._looks_at = one.sent_at
            connection.clock.at(one.sent_at, self._next, connection)

    def _begin(self, fragment: int, begin: Transfer) -> None:
        size_bytes, deliver = begin()
        connection = self._connection
        sent_at = connection.clock.now + size_bytes / connection.link.bytes_per_second
        one = self._under_way = _UnderWay(fragment, deliver, sent_at, connection, len(self._lines))
        if self._lines:
            # It flows through all lines at once: it is sent when the slowest has carried it.
            passed = partial(self._passed, one)
            one.drops = [line.carry(size_bytes, passed) for line in self._lines]
        else:
            self._sent(one)

    def _passed(self, one: _UnderWay) -> None:
        one.parts -= 1
        if one.parts == 0 and one.open:
            one.sent_at = max(one.sent_at, self._connection.clock.now)
            self._sent(one)

    def _sent(self, one: _UnderWay) -> None:
        """Deliver a transfer that no shared line delays any longer, and then begin the next."""
        connection = self._connection
        connection.clock.at(one.sent_at + connection.latency_seconds(), one.deliver, one)
        if self._waiting:
            self._next()
