"""Receives a payload's parts into one buffer, for either side."""

import asyncio
from typing import Final

import xxhash

from diloco.wire.errors import CorruptedError
from diloco.wire.part_messages import check_part, read_part
from diloco.wire.parts import Grid, PartsHeld

_HASHED_AT_ONCE: Final = 2
"""Parts that are hashed when one arrives: on average more than one, so that little is left at the end."""
_HASHED_ON_THE_LOOP_BYTES: Final = 4 << 20
"""More than this is hashed in a thread, so that the event loop goes on."""


class PartsReceiver:
    """The buffer of one transfer. Owned by an event loop."""

    def __init__(self, buffer: memoryview, grid: Grid) -> None:
        """Receive into ``buffer`` (writable, contiguous bytes, exactly as long as the payload)."""
        self._buffer = buffer
        self._grid = grid
        self._digest = xxhash.xxh3_128()
        self._hashed = 0
        """Parts in the digest so far."""
        self.held = PartsHeld(grid.count)

    def take_over(self, other: "PartsReceiver") -> None:
        """Begin with the parts that another receiver of the same payload and grid has."""
        other.copy_to(self._buffer)
        self.held = other.held

    def copy_to(self, buffer: memoryview) -> None:
        """Copy the parts that are here to their places in another buffer of the same payload."""
        for first, end in self.held.ranges:
            begin, _ = self._grid.bounds(first)
            _, after = self._grid.bounds(end - 1)
            buffer[begin:after] = self._buffer[begin:after]

    def add(self, connection: int, message: bytes) -> int:
        """Put a part in its place; returns which one it was. One that is here already is checked and dropped.

        Raises:
            InvalidMessageError: it is not exactly one part, or came on this connection before.
            TooLargeError: it is longer than any part, or too many came again.
            CorruptedError: its checksum is wrong.
        """
        part, data, checksum = read_part(message, self._grid)
        new = self.held.check(connection, part)
        check_part(part, data, checksum)
        if new:
            begin, end = self._grid.bounds(part)
            self._buffer[begin:end] = data
        self.held.add(connection, part)
        for _ in range(min(_HASHED_AT_ONCE, self.held.prefix - self._hashed)):
            self._hash_next()
        return part

    async def finish(self, expected_digest: bytes) -> bytes:
        """The XXH3-128 of the payload, once it is whole. An empty ``expected_digest`` is not compared.

        Raises:
            CorruptedError: the digest is not the expected one.
        """
        if (self._grid.count - self._hashed) * self._grid.part_bytes > _HASHED_ON_THE_LOOP_BYTES:
            await asyncio.to_thread(self._hash_rest)
        else:
            self._hash_rest()
        digest = self._digest.digest()
        if expected_digest not in (b"", digest):
            raise CorruptedError("the digest of the payload does not hold")
        return digest

    def _hash_rest(self) -> None:
        while self._hashed < self._grid.count:
            self._hash_next()

    def _hash_next(self) -> None:
        begin, end = self._grid.bounds(self._hashed)
        self._digest.update(self._buffer[begin:end])
        self._hashed += 1
