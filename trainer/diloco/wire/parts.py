"""A payload in parts: its ranges, what a sender has still to send, and what a receiver has. Pure bookkeeping.

A transfer's parts are spread over several connections. Every part is checked and acknowledged by itself, so whatever
the order in which they arrive, and whatever is lost or comes twice, the payload is made once. The sender of a transfer
keeps ``PartsToSend``, its receiver ``PartsHeld``; both count the parts from 0.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from diloco.wire.errors import InvalidMessageError, TooLargeError

BLOCK_BYTES: Final = 64 << 10
"""Parts are whole blocks, except the last one: so the layout bounds their number, and a payload's digest, which is made
from those of its blocks, is the same however it was cut."""
LARGEST_PART_BYTES: Final = 1 << 20
"""A receiver refuses more. It bounds what gRPC holds for each call."""
_PARTS_A_CONNECTION: Final = 8
"""Parts that each of several connections gets of a small payload (ours), so that they end at about one time."""
_LEAST_CONNECTION_BYTES: Final = 256 << 10
"""With less for each connection, fewer connections are used (ours): a call costs more than it gains."""
_LIMITED_SECONDS: Final = 0.02
"""Longest time that one part takes of a region's limit, where the least size allows it (ours)."""
_ROUND_TRIP_SECONDS: Final = 0.0025
"""Round trip for which one more connection is used (ours): a window of 4 MiB in that time is above 10 Gbit/s."""
_STALLED_SECONDS: Final = 1.0
_STALLED_ANSWERS: Final = 4.0
"""A connection is stalled when an acknowledgement takes this many times as long as the slowest one did (ours)."""

_UNACKNOWLEDGED_BYTES: Final = 8 << 20
"""Bytes that are under way on one connection at most (ours): more than two windows, which 1 Gbit/s fills at 150 ms over
four connections. What a sender and the connection hold for a transfer is bounded by it, however slow the link."""

Ranges = list[tuple[int, int]]
"""Ranges of parts: first, and one after the last; rising, and with gaps between them."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How a payload is cut: parts of one size, the last one shorter."""

    payload_bytes: int
    part_bytes: int

    def __post_init__(self) -> None:
        """Check the size of the parts, which bounds their number.

        Raises:
            InvalidMessageError: it is out of range.
        """
        allowed = BLOCK_BYTES <= self.part_bytes <= LARGEST_PART_BYTES and self.part_bytes % BLOCK_BYTES == 0
        if self.payload_bytes < 1 or not allowed:
            raise InvalidMessageError(
                f"part_bytes {self.part_bytes} for a payload of {self.payload_bytes} bytes: use a multiple of "
                f"{BLOCK_BYTES} up to {LARGEST_PART_BYTES}, of a payload of 1 byte or more"
            )

    @property
    def count(self) -> int:
        """Number of parts, at least 1."""
        return -(-self.payload_bytes // self.part_bytes)

    def bounds(self, part: int) -> tuple[int, int]:
        """Offset of a part's first byte, and of the byte after its last."""
        begin = part * self.part_bytes
        return begin, min(self.payload_bytes, begin + self.part_bytes)

    def size(self, part: int) -> int:
        """Bytes of a part."""
        begin, end = self.bounds(part)
        return end - begin

    def part_at(self, offset: int, size: int) -> int:
        """The part that these bytes are.

        Raises:
            InvalidMessageError: they are not exactly one part: they overlap two, or are outside the payload.
        """
        part, rest = divmod(offset, self.part_bytes)
        if rest or offset >= self.payload_bytes or size != self.size(part):
            raise InvalidMessageError(
                f"{size} bytes at offset {offset} are not one of {self.count} parts of {self.part_bytes} bytes of a "
                f"payload of {self.payload_bytes}"
            )
        return part


def grid_for(payload_bytes: int, connections: int, bytes_per_second: float = 0.0) -> Grid:
    """How to cut a payload that goes over so many connections, of a region with such a limit; 0: none."""
    wanted = payload_bytes
    if connections > 1 and payload_bytes > LARGEST_PART_BYTES:
        wanted = -(-payload_bytes // (connections * _PARTS_A_CONNECTION))
    if bytes_per_second:
        wanted = min(wanted, max(1, int(bytes_per_second * _LIMITED_SECONDS)))
    rounded = -(-wanted // BLOCK_BYTES) * BLOCK_BYTES
    return Grid(payload_bytes, min(LARGEST_PART_BYTES, max(BLOCK_BYTES, rounded)))


def connections_for(payload_bytes: int, connections: int, answer_seconds: float = math.inf) -> int:
    """How many of the connections a payload is worth on a link with such a round trip; infinite: not known."""
    if payload_bytes <= LARGEST_PART_BYTES:
        return 1
    if answer_seconds < connections * _ROUND_TRIP_SECONDS:
        connections = max(1, math.ceil(answer_seconds / _ROUND_TRIP_SECONDS))
    return max(1, min(connections, payload_bytes // _LEAST_CONNECTION_BYTES))


def most_under_way(grid: Grid) -> int:
    """Parts that may be under way on one connection."""
    return max(2, _UNACKNOWLEDGED_BYTES // grid.part_bytes)


def ranges_of(parts: Iterable[int]) -> Ranges:
    """Rising part numbers as ranges."""
    ranges: Ranges = []
    for part in parts:
        if ranges and ranges[-1][1] == part:
            ranges[-1] = (ranges[-1][0], part + 1)
        else:
            ranges.append((part, part + 1))
    return ranges


class PartsToSend:
    """A sender's bookkeeping: which part a connection sends next. A connection is any number."""

    def __init__(self, count: int, most_under_way: int | None = None) -> None:
        """Send ``count`` parts, at most so many unacknowledged ones on a connection; None: any number."""
        self._count = count
        self._most_under_way = count if most_under_way is None else most_under_way
        self._fresh = 0
        """Parts from here on were never sent."""
        self._again: deque[int] = deque()
        self._doubtful: dict[int, float] = {}
        """Parts sent on a connection that is gone, and when it went: the receiver may have them."""
        self._out: dict[int, dict[int, float]] = {}
        """By connection: parts sent on it that are not acknowledged, and when they were sent."""
        self._moved_at: dict[int, float] = {}
        """By connection: when it was last seen to carry something."""
        self._done = bytearray(count)
        self.left = count
        """Number of parts that the receiver is not known to have."""
        self._slowest_seconds = 0.0
        self.granted: int | None = None
        """Parts that the receiver lets come, of all of them; None: any number."""
        self.sent_again = 0
        """Parts given out more than once."""

    @property
    def whole(self) -> bool:
        """Whether the receiver has all of it."""
        return self.left == 0

    @property
    def stalled_seconds(self) -> float:
        """Without an acknowledgement for so long, a connection counts as stalled."""
        return max(_STALLED_SECONDS, _STALLED_ANSWERS * self._slowest_seconds)

    def opened(self, connection: int, now: float) -> None:
        """Note a new connection."""
        self._out[connection] = {}
        self._moved_at[connection] = now

    def take(self, connection: int, now: float) -> int | None:
        """The part to send next on a connection; None: none now."""
        full = len(self._out[connection]) >= self._most_under_way
        part = None if full else self._next(connection, now)
        if part is not None:
            if not self._out[connection]:
                self._moved_at[connection] = now
            self._out[connection][part] = now
        return part

    def acknowledged(self, ranges: Ranges, now: float) -> None:
        """Note what the receiver says it has, on any connection.

        Raises:
            InvalidMessageError: the ranges are out of order or outside the payload.
        """
        last = 0
        for first, end in ranges:
            if not last <= first < end <= self._count:
                raise InvalidMessageError(f"parts {first} to {end} of {self._count} were acknowledged")
            last = end
            for part in range(first, end):
                self._settle(part, now)

    def reported(self) -> None:
        """Note that the receiver has said what it has, on a new connection: the rest of the doubtful parts are lost."""
        self._again.extend(self._doubtful)
        self._doubtful.clear()

    def closed(self, connection: int, now: float) -> None:
        """Note that a connection is gone."""
        for part in self._out.pop(connection, {}):
            if not self._done[part] and not any(part in out for out in self._out.values()):
                self._doubtful[part] = now
        self._moved_at.pop(connection, None)

    def _settle(self, part: int, now: float) -> None:
        senders = [connection for connection, out in self._out.items() if part in out]
        for connection in senders:
            sent_at = self._out[connection].pop(part)
            if len(senders) == 1:  # of several it is not known which one got it through
                self._moved_at[connection] = now
                self._slowest_seconds = max(self._slowest_seconds, now - sent_at)
        self._doubtful.pop(part, None)
        if not self._done[part]:
            self._done[part] = 1
            self.left -= 1

    def _next(self, connection: int, now: float) -> int | None:
        if self.granted is not None:
            under_way = sum(len(out) for out in self._out.values())
            if self._count - self.left + under_way >= self.granted:
                return None
        # Parts that were lost come last: until then the receiver has said which of them it has.
        while self._fresh < self._count:
            part = self._fresh
            self._fresh += 1
            if not self._done[part]:
                return part
        while self._again:
            part = self._again.popleft()
            if not self._done[part]:
                self.sent_again += 1
                return part
        return self._stuck(connection, now)

    def _stuck(self, connection: int, now: float) -> int | None:
        """A part that another connection does not get through, for a connection that has nothing else to do."""
        own = self._out[connection]
        if own:
            return None
        for part, since in self._doubtful.items():
            if now - since >= self.stalled_seconds:
                del self._doubtful[part]
                self.sent_again += 1
                return part
        for other, out in self._out.items():
            if out and now - self._moved_at[other] >= self.stalled_seconds:
                for part in out:
                    if all(part not in one for number, one in self._out.items() if number != other):
                        self.sent_again += 1
                        return part
        return None


class PartsHeld:
    """A receiver's bookkeeping: which parts it has."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held = bytearray(count)
        self.left = count
        """Number of parts that are missing."""
        self._by_connection: dict[int, set[int]] = {}
        self.came_again = 0
        """Parts that came although they were here."""

    @property
    def whole(self) -> bool:
        """Whether all are here."""
        return self.left == 0

    @property
    def ranges(self) -> Ranges:
        """What is held."""
        return ranges_of(part for part, held in enumerate(self._held) if held)

    def check(self, connection: int, part: int) -> bool:
        """Whether a part that arrives on a connection is new; it is not noted yet.

        Raises:
            InvalidMessageError: it came on this connection before.
            TooLargeError: too many came again: more than all of them.
        """
        if part in self._by_connection.get(connection, ()):
            raise InvalidMessageError(f"part {part} of {self._count} came twice on one connection")
        if self._held[part] and self.came_again >= self._count:
            raise TooLargeError(f"more than {self._count} parts came again")
        return not self._held[part]

    def add(self, connection: int, part: int) -> None:
        """Note that a part is here, after ``check``."""
        self._by_connection.setdefault(connection, set()).add(part)
        if self._held[part]:
            self.came_again += 1
            return
        self._held[part] = 1
        self.left -= 1

    def closed(self, connection: int) -> None:
        """Note that a connection is gone."""
        self._by_connection.pop(connection, None)
