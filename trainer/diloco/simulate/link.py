"""A connection between a learner and the syncer in virtual time, with latency and bandwidth, that can break.

Control messages take only the latency; fragments are sent one after the other in each direction, as on a link of
limited bandwidth: outer gradients in the order in which they were requested, merged fragments the newest first.
Transfers that are under way when the connection breaks never arrive. A connection may pass lines that it shares with
others, such as a region's link and the syncer's.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from diloco.simulate.clock import VirtualClock
from diloco.simulate.scenario import Link

Transfer = Callable[[], tuple[int, Callable[[], None]]]
"""Called when a transfer begins; returns its bytes, and a function to call when it has arrived."""


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

    def carry(self, size_bytes: int, done: Callable[[], None]) -> Callable[[], None]:
        """Begin a transfer, and call ``done`` when it is complete. Returns a function that drops it."""
        self._advance()
        self._numbered += 1
        number = self._numbered
        heapq.heappush(self._due, (self._received + size_bytes, number, done))
        if self._due[0][1] == number:
            self._schedule()
        return partial(self._drop, number)

    def _drop(self, number: int) -> None:
        if any(number == under_way for _, under_way, _ in self._due):
            self._advance()
            self._dropped.add(number)
            self._schedule()

    def _advance(self) -> None:
        sharers = len(self._due) - len(self._dropped)
        if sharers:
            self._received += (self._clock.now - self._at) * self._bytes_per_second / sharers
        self._at = self._clock.now

    def _left(self) -> float:
        """Seconds until the next transfer is complete if none is added; infinite: there is none."""
        while self._due and self._due[0][1] in self._dropped:
            self._dropped.discard(heapq.heappop(self._due)[1])
        if not self._due:
            return inf
        left_bytes = max(0.0, self._due[0][0] - self._received) * (len(self._due) - len(self._dropped))
        return left_bytes / self._bytes_per_second

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
        done = None
        # Not less than the precision of the clock, or it would never be complete.
        if self._left() <= _PRECISION * (1.0 + at):
            self._received = max(self._received, self._due[0][0])
            done = heapq.heappop(self._due)[2]
        self._schedule()
        if done is not None:
            done()


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
        self.up.arrive(self.clock.now, deliver)

    def send_back(self, deliver: Callable[[], None]) -> None:
        """Deliver a control message to the learner."""
        self.down.arrive(self.clock.now, deliver)

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


class Direction:
    """One direction's messages and transfers."""

    def __init__(self, connection: Connection, lines: Sequence[SharedLine] = (), *, newest_first: bool) -> None:
        self._connection = connection
        self._lines = lines
        self._newest_first = newest_first
        self._waiting: dict[int, Transfer] = {}
        self._free_at = 0.0
        """When the latest transfer has been sent."""
        self._will_go_on = False
        self._parts = 0
        """Lines that the transfer under way has not passed yet, or 1 while its own connections take longer."""
        self._drops: list[Callable[[], None]] = []
        self._arrives_at = 0.0

    def arrive(self, when: float, deliver: Callable[[], None]) -> None:
        """Deliver what is sent at ``when`` seconds, after all that was sent before; not if the connection breaks."""
        connection = self._connection
        self._arrives_at = max(self._arrives_at, when + connection.latency_seconds())
        connection.clock.at(self._arrives_at, deliver, connection)

    def transfer(self, fragment: int, begin: Transfer) -> None:
        """Send a fragment when its turn comes; it replaces one of that number that still waits."""
        self._waiting.pop(fragment, None)
        self._waiting[fragment] = begin
        if not self._will_go_on and not self._parts:
            self._next()

    def cancel(self, fragment: int) -> None:
        """Drop a fragment that still waits."""
        self._waiting.pop(fragment, None)

    def drop(self) -> None:
        """Drop the transfer that is under way on the shared lines."""
        for drop in self._drops:
            drop()
        self._drops.clear()

    def _next(self) -> None:
        waiting, connection = self._waiting, self._connection
        if waiting and connection.open and connection.clock.now >= self._free_at:
            fragment = next(reversed(waiting)) if self._newest_first else next(iter(waiting))
            size_bytes, deliver = waiting.pop(fragment)()
            sent_at = connection.clock.now + size_bytes / connection.link.bytes_per_second
            if self._lines:
                self._pass(size_bytes, deliver, sent_at)
                return
            self._free_at = sent_at
            self._deliver(sent_at, deliver)
        self._will_go_on = bool(waiting) and connection.open
        if self._will_go_on:
            connection.clock.at(self._free_at, self._next)

    def _deliver(self, sent_at: float, deliver: Callable[[], None]) -> None:
        connection = self._connection
        connection.clock.at(sent_at + connection.latency_seconds(), deliver, connection)

    def _pass(self, size_bytes: int, deliver: Callable[[], None], sent_at: float) -> None:
        """Flow through all lines at once: the transfer is sent when the slowest has carried it."""
        connection = self._connection
        self._will_go_on = False
        self._parts = len(self._lines)

        def sent() -> None:
            self._parts = 0
            self._deliver(connection.clock.now, deliver)
            self._next()

        def passed() -> None:
            self._parts -= 1
            if self._parts == 0 and connection.open:
                self._drops.clear()
                if sent_at <= connection.clock.now:
                    sent()
                else:
                    self._parts = 1
                    connection.clock.at(sent_at, sent, connection)

        self._drops = [line.carry(size_bytes, passed) for line in self._lines]
