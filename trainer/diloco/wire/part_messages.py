"""Parts as messages, and what a receiver makes of them and says about them.

All numbers are u64, little-endian. A part is its offset in the payload, a checksum, then its data. What a receiver says
begins with a byte: ``H``, then the number of parts that it lets come (0: any), then ranges of parts that it has, first
and one after the last; or ``R``, then a serialized PushReceipt, which ends a push.

Either side hashes every byte once, block by block. The sums of a part's blocks and its offset make its checksum, so
that a part in a wrong place is found too; the sums of all blocks make the payload's digest.
"""

import asyncio
import contextlib
import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from diloco.wire.convert import pack, unpack
from diloco.wire.errors import CorruptedError, InvalidMessageError, TooLargeError
from diloco.wire.messages import PushReceipt
from diloco.wire.parts import BLOCK_BYTES, LARGEST_PART_BYTES, Grid, PartsHeld, Ranges, ranges_of

_PART: Final = struct.Struct("<QQ")
HEADER_BYTES: Final = _PART.size
_SUM_BYTES: Final = 8
_HELD: Final = struct.Struct("<cQ")
_RANGE: Final = struct.Struct("<QQ")
_HOLDS: Final = b"H"
_RECEIPT: Final = b"R"
_ACKNOWLEDGING_SECONDS: Final = 0.02
_ACKNOWLEDGING_BYTES: Final = 4 << 20
"""Between two acknowledgements on a connection so much time passes or so many bytes arrive (ours). This is less than
may be under way on it, so that a sender on a fast link never waits for one."""
MOST_RANGES: Final = 4000
"""Ranges in one message; parts of others are sent again."""
_LARGEST_HELD_BYTES: Final = _HELD.size + MOST_RANGES * _RANGE.size


@dataclass(frozen=True, slots=True)
class Holds:
    """What a receiver has, or has just received."""

    ranges: Ranges
    granted: int = 0
    """Parts that it lets come, of all of them; 0: any number."""


def payload_digest(payload: memoryview) -> bytes:
    """The digest of a payload, 16 bytes: XXH3-128 over the XXH3-64 of each block."""
    return _digest_of(_sums_of(payload))


def _sums_of(data: memoryview) -> bytes:
    """The XXH3-64 of each block."""
    return b"".join(
        xxhash.xxh3_64_digest(data[begin : begin + BLOCK_BYTES]) for begin in range(0, len(data), BLOCK_BYTES)
    )


def _digest_of(sums: bytes | bytearray) -> bytes:
    return xxhash.xxh3_128_digest(sums)


def _checksum(sums: bytes, offset: int) -> int:
    return xxhash.xxh3_64_intdigest(sums, offset)


def part_checksum(payload: memoryview, grid: Grid, part: int) -> int:
    """What the receiver checks a part by."""
    begin, end = grid.bounds(part)
    return _checksum(_sums_of(payload[begin:end]), begin)


def part_message(payload: memoryview, grid: Grid, part: int, checksum: int) -> bytes:
    """A part as it is sent."""
    begin, end = grid.bounds(part)
    return b"".join((_PART.pack(begin, checksum), payload[begin:end]))


class PartsReceiver:
    """The buffer of one transfer. Owned by an event loop."""

    def __init__(self, buffer: memoryview, grid: Grid) -> None:
        """Receive into ``buffer`` (writable, contiguous bytes, exactly as long as the payload)."""
        self._buffer = buffer
        self._sums = bytearray(-(-grid.payload_bytes // BLOCK_BYTES) * _SUM_BYTES)
        self.grid = grid
        self.held = PartsHeld(grid.count)

    def move_to(self, buffer: memoryview) -> None:
        """Go on in another buffer."""
        for first, end in self.held.ranges:
            begin, _ = self.grid.bounds(first)
            _, after = self.grid.bounds(end - 1)
            buffer[begin:after] = self._buffer[begin:after]
        self._buffer = buffer

    def add(self, connection: int, message: bytes) -> int:
        """Put a part in its place; returns which one it was. One that is here already is checked and dropped.

        Raises:
            InvalidMessageError: it is not exactly one part, or came on this connection before.
            TooLargeError: it is longer than any part, or too many came again.
            CorruptedError: its checksum is wrong.
        """
        size = len(message) - HEADER_BYTES
        if size <= 0:
            raise InvalidMessageError(f"a part of {len(message)} bytes: it has {HEADER_BYTES} of header and some data")
        if size > LARGEST_PART_BYTES:
            raise TooLargeError(f"a part of {size} bytes of data; at most {LARGEST_PART_BYTES} are allowed")
        offset, checksum = _PART.unpack_from(message)
        part = self.grid.part_at(offset, size)
        new = self.held.check(connection, part)
        data = memoryview(message)[HEADER_BYTES:]
        # Checked in the message, right before it is copied, so that checksum and copy read it while it is in the cache.
        sums = _sums_of(data)
        if _checksum(sums, offset) != checksum:
            raise CorruptedError(f"the checksum of part {part} does not hold")
        if new:
            self._buffer[offset : offset + size] = data
            first = offset // BLOCK_BYTES * _SUM_BYTES
            self._sums[first : first + len(sums)] = sums
        self.held.add(connection, part)
        return part

    def finish(self, expected_digest: bytes) -> bytes:
        """The digest of the payload, once it is whole. An empty ``expected_digest`` is not compared.

        Raises:
            CorruptedError: the digest is not the expected one.
        """
        digest = _digest_of(self._sums)
        if expected_digest not in (b"", digest):
            raise CorruptedError("the digest of the payload does not hold")
        return digest


class Arrivals:
    """Parts that arrived on one connection and are still to be acknowledged."""

    def __init__(self, grid: Grid) -> None:
        self._parts: list[int] = []
        self._many = max(1, _ACKNOWLEDGING_BYTES // grid.part_bytes)
        self._some_here, self._many_here = asyncio.Event(), asyncio.Event()

    def add(self, part: int) -> None:
        """Note a part."""
        self._parts.append(part)
        self._some_here.set()
        if len(self._parts) >= self._many:
            self._many_here.set()

    def wake(self) -> None:
        """Note that there is something to say, although no part has arrived."""
        self._some_here.set()

    def hurry(self) -> None:
        """End the pause."""
        self._some_here.set()
        self._many_here.set()

    async def pause(self) -> None:
        """Wait until it is time to say more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ACKNOWLEDGING_SECONDS):
                await self._many_here.wait()
        await self._some_here.wait()

    def take(self) -> Ranges:
        """What has arrived since the last time."""
        self._some_here.clear()
        self._many_here.clear()
        parts, self._parts = self._parts, []
        return ranges_of(sorted(parts))


def pack_holds(holds: Holds) -> bytes:
    """As it is sent; of too many ranges the first ones."""
    ranges = holds.ranges[:MOST_RANGES]
    return b"".join((_HELD.pack(_HOLDS, holds.granted), *(_RANGE.pack(*one) for one in ranges)))


def pack_receipt(receipt: PushReceipt) -> bytes:
    """As it is sent."""
    return _RECEIPT + pack(receipt)


def unpack_from_receiver(message: bytes) -> Holds | PushReceipt:
    """Read what a receiver says.

    Raises:
        InvalidMessageError: it is neither.
        TooLargeError: it is longer than any such message.
    """
    if len(message) > _LARGEST_HELD_BYTES:
        raise TooLargeError(f"{len(message)} bytes about parts; at most {_LARGEST_HELD_BYTES} are read")
    if message[:1] == _RECEIPT:
        return unpack(PushReceipt, message[1:])
    if message[:1] != _HOLDS or len(message) < _HELD.size or (len(message) - _HELD.size) % _RANGE.size:
        raise InvalidMessageError(f"{len(message)} bytes that do not say which parts are held")
    granted: int = _HELD.unpack_from(message)[1]
    return Holds(list(_RANGE.iter_unpack(message[_HELD.size :])), granted)
