"""Ranges of a payload, and what its sender and receiver note about them."""

import random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from diloco.wire.errors import CorruptedError, InvalidMessageError, TooLargeError
from diloco.wire.messages import PushReceipt
from diloco.wire.part_messages import (
    MOST_RANGES,
    Holds,
    PartsReceiver,
    pack_holds,
    pack_receipt,
    part_checksum,
    part_message,
    payload_digest,
    unpack_from_receiver,
)
from diloco.wire.parts import (
    BLOCK_BYTES,
    LARGEST_PART_BYTES,
    Grid,
    PartsHeld,
    PartsToSend,
    connections_for,
    grid_for,
    most_under_way,
    ranges_of,
)

KIB = 1 << 10
GRID = Grid(200 * KIB, 64 * KIB)
"""Three parts of 64 KiB and one of 8."""


def message_of(payload: memoryview, grid: Grid, part: int) -> bytes:
    return part_message(payload, grid, part, part_checksum(payload, grid, part))


def sender(count: int, *connections: int) -> PartsToSend:
    made = PartsToSend(count)
    for connection in connections:
        made.opened(connection, 0.0)
    return made


def taken(parts: PartsToSend, connection: int, now: float = 0.0) -> list[int]:
    found = []
    while (part := parts.take(connection, now)) is not None:
        found.append(part)
    return found


def test_a_grid_covers_the_payload_without_gap_or_overlap() -> None:
    assert GRID.count == 4
    bounds = [GRID.bounds(part) for part in range(GRID.count)]
    assert bounds == [(0, 64 * KIB), (64 * KIB, 128 * KIB), (128 * KIB, 192 * KIB), (192 * KIB, 200 * KIB)]
    assert [GRID.part_at(begin, end - begin) for begin, end in bounds] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (64 * KIB + 1, 64 * KIB),  # overlaps two parts
        (0, 64 * KIB - 1),
        (0, 64 * KIB + 1),
        (192 * KIB, 64 * KIB),  # beyond the end
        (256 * KIB, 64 * KIB),
        (1 << 63, 64 * KIB),
    ],
)
def test_bytes_that_are_not_exactly_one_part_are_refused(offset: int, size: int) -> None:
    with pytest.raises(InvalidMessageError, match=rf"^{size} bytes at offset {offset} are not one of 4 parts"):
        GRID.part_at(offset, size)


@pytest.mark.parametrize(
    ("payload_bytes", "part_bytes"),
    [
        (1 << 20, 1),
        (1 << 20, BLOCK_BYTES - 1),
        (1 << 30, LARGEST_PART_BYTES + 1),
        (1 << 20, BLOCK_BYTES + 1),
        (0, 1),
        (100, 0),
    ],
)
def test_parts_of_a_forbidden_size_are_refused_by_name(payload_bytes: int, part_bytes: int) -> None:
    with pytest.raises(InvalidMessageError, match=f"^part_bytes {part_bytes} for a payload of {payload_bytes} bytes"):
        Grid(payload_bytes, part_bytes)


@pytest.mark.parametrize("payload_bytes", [1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 << 20, 1 << 30, 16 << 30])
@pytest.mark.parametrize("connections", [1, 8, 64])
def test_every_payload_has_a_grid_of_whole_steps(payload_bytes: int, connections: int) -> None:
    grid = grid_for(payload_bytes, connections)
    assert grid.part_bytes % BLOCK_BYTES == 0
    assert sum(grid.size(part) for part in (0, grid.count - 1)[: grid.count]) <= payload_bytes
    assert grid.bounds(grid.count - 1)[1] == payload_bytes
    assert grid.count <= max(8 * connections * (connections > 1), -(-payload_bytes // LARGEST_PART_BYTES))


def test_small_payloads_use_few_connections() -> None:
    assert [connections_for(size, 8) for size in (1, 1 << 20, (1 << 20) + 1, 2 << 20, 1 << 30)] == [1, 1, 4, 8, 8]


@pytest.mark.parametrize("payload_bytes", [1, BLOCK_BYTES, 300 * KIB, 1 << 20])
def test_what_fits_into_one_part_goes_as_one(payload_bytes: int) -> None:
    assert grid_for(payload_bytes, 8).count == 1
    assert grid_for(payload_bytes, 8, bytes_per_second=1.0).part_bytes == BLOCK_BYTES, "a limit is kept part by part"


def test_short_links_use_few_connections() -> None:
    used = [connections_for(1 << 30, 8, milliseconds / 1000) for milliseconds in (0.1, 2.4, 2.6, 10, 20, 150)]
    assert used == [1, 1, 2, 4, 8, 8]
    assert connections_for(1 << 30, 64, 0.15) == 60
    assert connections_for(1 << 30, 64) == 64


def test_a_lost_connections_parts_wait_for_what_the_receiver_says() -> None:
    parts = sender(4, 1, 2)
    assert [parts.take(1, 0.0) for _ in range(3)] == [0, 1, 2]
    parts.acknowledged([(0, 1)], 0.1)
    parts.closed(1, 0.2)
    assert taken(parts, 2, 0.2) == [3]
    parts.opened(3, 0.3)
    assert parts.take(3, 0.3) is None  # parts 1 and 2 may have arrived
    parts.acknowledged([(0, 2)], 0.4)
    parts.reported()
    assert taken(parts, 3, 0.4) == [2]
    assert parts.sent_again == 1


def test_a_lost_connections_parts_are_sent_again_after_a_while() -> None:
    parts = sender(2, 1)
    assert taken(parts, 1) == [0, 1]
    parts.closed(1, 0.0)
    parts.opened(2, 0.0)
    assert parts.take(2, 0.9) is None
    assert parts.take(2, 1.0) == 0
    assert parts.take(2, 1.0) is None  # one at a time


def test_a_stalled_connections_parts_go_to_one_that_has_nothing_to_do() -> None:
    parts = sender(4, 1, 2)
    assert [parts.take(1, 0.0), parts.take(1, 0.0)] == [0, 1]
    assert taken(parts, 2) == [2, 3]
    parts.acknowledged([(2, 3)], 0.5)
    assert parts.take(2, 1.9) is None  # it has one of its own under way
    parts.acknowledged([(3, 4)], 0.5)
    assert parts.stalled_seconds == 2.0
    assert parts.take(2, 1.9) is None
    assert parts.take(2, 2.0) == 0
    parts.acknowledged([(0, 1)], 2.1)
    # What the stalled connection does get through is not sent again.
    parts.acknowledged([(1, 2)], 2.2)
    assert parts.take(2, 99.0) is None
    assert parts.whole


def test_a_stalled_connection_gets_no_credit_for_what_another_carried() -> None:
    parts = sender(4, 1, 2)
    assert [parts.take(1, 0.0), parts.take(1, 0.0)] == [0, 1]
    assert taken(parts, 2) == [2, 3]
    parts.acknowledged([(2, 4)], 0.1)
    assert parts.take(2, 1.0) == 0
    parts.acknowledged([(0, 1)], 1.1)
    assert parts.stalled_seconds == 1.0
    assert parts.take(2, 1.1) == 1  # at once: connection 1 has still carried nothing


def test_no_more_parts_than_allowed_are_under_way_on_a_connection() -> None:
    parts = PartsToSend(6, 2)
    for connection in (1, 2):
        parts.opened(connection, 0.0)
    assert taken(parts, 1) == [0, 1]
    assert taken(parts, 2) == [2, 3]
    parts.acknowledged([(0, 1)], 0.1)
    assert taken(parts, 1) == [4]
    assert [most_under_way(Grid(64 << 20, size)) for size in (64 * KIB, 1 << 20)] == [128, 8]


def test_a_part_is_with_two_connections_at_most() -> None:
    parts = sender(1, 1, 2, 3)
    assert parts.take(1, 0.0) == 0
    assert parts.take(2, 5.0) == 0
    assert parts.take(3, 10.0) is None


def test_no_more_parts_go_out_than_are_granted() -> None:
    parts = sender(4, 1)
    parts.granted = 0
    assert parts.take(1, 0.0) is None
    parts.granted = 2
    assert taken(parts, 1) == [0, 1]
    parts.acknowledged([(0, 1)], 0.1)
    assert parts.take(1, 0.1) is None
    parts.granted = 4
    assert taken(parts, 1) == [2, 3]


@pytest.mark.parametrize("ranges", [[(0, 5)], [(1, 1)], [(2, 1)], [(2, 3), (0, 1)], [(0, 1 << 63)]])
def test_acknowledgements_of_parts_that_do_not_exist_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidMessageError, match=r"were acknowledged$"):
        sender(4, 1).acknowledged(ranges, 0.0)


def test_a_receiver_counts_each_part_once() -> None:
    held = PartsHeld(3)
    for connection, part in ((1, 2), (2, 0), (1, 0)):
        assert held.check(connection, part) == ((connection, part) != (1, 0))
        held.add(connection, part)
    assert (held.ranges, held.left, held.came_again) == ([(0, 1), (2, 3)], 1, 1)
    held.add(2, 1)
    assert held.whole


def test_a_part_twice_on_one_connection_is_refused() -> None:
    held = PartsHeld(3)
    held.add(1, 2)
    with pytest.raises(InvalidMessageError, match="part 2 of 3 came twice on one connection"):
        held.check(1, 2)
    held.closed(1)
    assert not held.check(3, 2)


def test_parts_do_not_come_again_without_end() -> None:
    held = PartsHeld(2)
    for connection in range(3):
        held.add(connection, 0)
    with pytest.raises(TooLargeError, match="more than 2 parts came again"):
        held.check(3, 0)


def receiver_of(grid: Grid = GRID) -> tuple[bytearray, PartsReceiver]:
    buffer = bytearray(grid.payload_bytes)
    return buffer, PartsReceiver(memoryview(buffer), grid)


@given(st.integers(1, 5 * BLOCK_BYTES), st.sampled_from((1, 2, 3)), st.integers(0, 1 << 32))
def test_a_payload_arrives_whole_in_any_order_with_the_digest_of_its_bytes(
    payload_bytes: int, blocks: int, seed: int
) -> None:
    drawn = random.Random(seed)
    payload, grid = drawn.randbytes(payload_bytes), Grid(payload_bytes, blocks * BLOCK_BYTES)
    buffer, receiver = receiver_of(grid)
    for part in drawn.sample(range(grid.count), grid.count):
        assert receiver.add(1, message_of(memoryview(payload), grid, part)) == part
    assert buffer == payload
    digest = payload_digest(memoryview(payload))
    assert receiver.finish(b"") == receiver.finish(digest) == digest
    sums = [xxhash.xxh3_64_digest(payload[i : i + BLOCK_BYTES]) for i in range(0, payload_bytes, BLOCK_BYTES)]
    assert digest == xxhash.xxh3_128_digest(b"".join(sums))
    with pytest.raises(CorruptedError, match="digest"):
        receiver.finish(bytes(16))


@given(st.integers(0, 1 << 32), st.integers(1, 2 * BLOCK_BYTES))
def test_any_flipped_bit_is_found(seed: int, payload_bytes: int) -> None:
    drawn = random.Random(seed)
    buffer, receiver = receiver_of(Grid(payload_bytes, 2 * BLOCK_BYTES))
    message = bytearray(message_of(memoryview(drawn.randbytes(payload_bytes)), receiver.grid, 0))
    bit = drawn.randrange(len(message) * 8)
    message[bit // 8] ^= 1 << bit % 8
    with pytest.raises((CorruptedError, InvalidMessageError)):
        receiver.add(1, bytes(message))
    assert buffer == bytes(payload_bytes)
    assert receiver.held.left == 1


def test_a_part_at_the_place_of_another_is_found() -> None:
    buffer, receiver = receiver_of()
    payload = memoryview(bytes(range(256)) * 800)
    first, second = (message_of(payload, GRID, part) for part in (0, 1))
    with pytest.raises(CorruptedError, match="the checksum of part 1 does not hold"):
        receiver.add(1, second[:8] + first[8:])
    assert not any(buffer)


def test_a_part_too_short_or_too_long_is_refused_at_its_length() -> None:
    _, receiver = receiver_of()
    with pytest.raises(InvalidMessageError, match="a part of 16 bytes"):
        receiver.add(1, bytes(16))
    with pytest.raises(TooLargeError, match="a part of 1048577 bytes of data; at most 1048576 are allowed"):
        receiver.add(1, bytes(16 + LARGEST_PART_BYTES + 1))


def test_what_has_arrived_moves_to_another_buffer() -> None:
    payload = memoryview(bytes(range(256)) * 800)
    _, receiver = receiver_of()
    receiver.add(1, message_of(payload, GRID, 2))
    receiver.held.closed(1)
    buffer = bytearray(len(payload))
    receiver.move_to(memoryview(buffer))
    for part in (0, 1, 3):
        receiver.add(2, message_of(payload, GRID, part))
    assert buffer == payload
    assert receiver.finish(payload_digest(payload))


def test_what_a_receiver_says_is_read_as_it_was_sent() -> None:
    for said in (Holds([]), Holds([(0, 3), (7, 1 << 62)], granted=9)):
        assert unpack_from_receiver(pack_holds(said)) == said
    receipt = PushReceipt(accepted=False, reason="it is no longer requested")
    assert unpack_from_receiver(pack_receipt(receipt)) == receipt


def test_of_too_many_ranges_the_first_are_said() -> None:
    ranges = ranges_of(range(0, 2 * MOST_RANGES + 2, 2))
    assert unpack_from_receiver(pack_holds(Holds(ranges))) == Holds(ranges[:MOST_RANGES])


@pytest.mark.parametrize("message", [b"", b"H", b"X" * 9, b"H" * 10, b"H" * 24])
def test_what_no_receiver_says_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="do not say which parts are held"):
        unpack_from_receiver(message)


def test_what_a_receiver_says_is_bounded() -> None:
    with pytest.raises(TooLargeError, match="bytes about parts; at most"):
        unpack_from_receiver(bytes(1 << 20))
