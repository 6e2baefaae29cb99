"""What is said about parts on the calls that carry them: a part, what a receiver has of them, and the end.

All numbers are u64, little-endian. A part is a chunk (`chunks`) whose data is exactly one part. What a receiver says
begins with a byte: ``H``, then the number of parts that it lets come (0: any), then ranges of parts that it has, first
and one after the last; or ``R``, then a serialized PushReceipt, which ends a push.
"""

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from diloco.wire.chunks import HEADER_BYTES
from diloco.wire.convert import pack, unpack
from diloco.wire.errors import CorruptedError, InvalidMessageError, TooLargeError
from diloco.wire.messages import PushReceipt
from diloco.wire.parts import LARGEST_PART_BYTES, Grid, Ranges

_PART: Final = struct.Struct("<QQ")
_HELD: Final = struct.Struct("<cQ")
_RANGE: Final = struct.Struct("<QQ")
_HOLDS: Final = b"H"
_RECEIPT: Final = b"R"
ACKNOWLEDGING_SECONDS: Final = 0.02
"""Least time between two acknowledgements on a connection (ours): on a fast link each stands for several parts."""
MOST_RANGES: Final = 4000
"""Ranges in one message; parts of others are sent again."""
_LARGEST_HELD_BYTES: Final = _HELD.size + MOST_RANGES * _RANGE.size


@dataclass(frozen=True, slots=True)
class Holds:
    """What a receiver has, or has just received."""

    ranges: Ranges
    granted: int = 0
    """Parts that it lets come, of all of them; 0: any number."""


def part_message(payload: memoryview, grid: Grid, part: int) -> bytes:
    """A part as it is sent."""
    begin, end = grid.bounds(part)
    data = payload[begin:end]
    return b"".join((_PART.pack(begin, xxhash.xxh3_64_intdigest(data)), data))


def read_part(message: bytes, grid: Grid) -> tuple[int, memoryview, int]:
    """Which part it is, its data, and its checksum, which ``check_part`` compares.

    Raises:
        InvalidMessageError: it is not exactly one part of this payload.
        TooLargeError: it is longer than any part may be.
    """
    size = len(message) - HEADER_BYTES
    if size <= 0:
        raise InvalidMessageError(f"a part of {len(message)} bytes: it has {HEADER_BYTES} of header and some data")
    if size > LARGEST_PART_BYTES:
        raise TooLargeError(f"a part of {size} bytes of data; at most {LARGEST_PART_BYTES} are allowed")
    offset, checksum = _PART.unpack_from(message)
    return grid.part_at(offset, size), memoryview(message)[HEADER_BYTES:], checksum


def check_part(part: int, data: memoryview, checksum: int) -> None:
    """Compare a part's checksum.

    Raises:
        CorruptedError: it does not hold.
    """
    if xxhash.xxh3_64_intdigest(data) != checksum:
        raise CorruptedError(f"the checksum of part {part} does not hold")


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
