"""Ranges of a payload, and what its sender and receiver note about them."""

import pytest

from diloco.wire.errors import CorruptedError, InvalidMessageError, TooLargeError
from diloco.wire.messages import PushReceipt
from diloco.wire.part_messages import (
    MOST_RANGES,
    Holds,
    check_part,
    pack_holds,
    pack_receipt,
    part_message,
    read_part,
    unpack_from_receiver,
)
from diloco.wire.parts import (
    LARGEST_PART_BYTES,
    LEAST_PART_BYTES,
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
    [(1 << 20, 1), (1 << 20, LEAST_PART_BYTES - 1), (1 << 30, LARGEST_PART_BYTES + 1), (100, 99), (0, 1), (100, 0)],
)
def test_parts_of_a_forbidden_size_are_refused_by_name(payload_bytes: int, part_bytes: int) -> None:
    with pytest.raises(InvalidMessageError, match=f"^part_bytes {part_bytes} for a payload of {payload_bytes} bytes"):
        Grid(payload_bytes, part_bytes)


@pytest.mark.parametrize("payload_bytes", [1, LEAST_PART_BYTES, LEAST_PART_BYTES + 1, 3 << 20, 1 << 30, 16 << 30])
@pytest.mark.parametrize("connections", [1, 8, 64])
def test_every_payload_has_a_grid_of_whole_steps(payload_bytes: int, connections: int) -> None:
    grid = grid_for(payload_bytes, connections)
    assert grid.part_bytes % LEAST_PART_BYTES == 0
    assert sum(grid.size(part) for part in (0, grid.count - 1)[: grid.count]) <= payload_bytes
    assert grid.bounds(grid.count - 1)[1] == payload_bytes
    assert grid.count <= max(16 * connections, -(-payload_bytes // LARGEST_PART_BYTES))


def test_small_payloads_use_few_connections() -> None:
    assert [connections_for(size, 8) for size in (1, 255 * KIB, 512 * KIB, 2 << 20, 1 << 30)] == [1, 1, 2, 8, 8]


def test_short_links_use_few_connections() -> None:
    used = [connections_for(1 << 30, 8, milliseconds / 1000) for milliseconds in (0.1, 2.4, 2.6, 10, 20, 150)]
    assert used == [1, 1, 2, 4, 8, 8]
    assert connections_for(1 << 30, 64, 0.15) == 60
    assert connections_for(1 << 30, 64) == 64


def test_each_part_is_sent_once_over_all_connections() -> None:
    parts = sender(4, 1, 2)
    assert [parts.take(connection, 0.0) for connection in (1, 2, 1, 2, 1)] == [0, 1, 2, 3, None]
    parts.acknowledged([(0, 4)], 0.1)
    assert parts.whole
    assert parts.sent_again == 0


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
    assert (held.ranges, held.prefix, held.left, held.came_again) == ([(0, 1), (2, 3)], 1, 1, 1)
    held.add(2, 1)
    assert held.whole
    assert held.prefix == 3


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


def test_a_part_is_read_as_it_was_sent() -> None:
    payload = memoryview(bytes(range(256)) * 800)
    for part in range(GRID.count):
        number, data, checksum = read_part(part_message(payload, GRID, part), GRID)
        check_part(number, data, checksum)
        begin, end = GRID.bounds(part)
        assert (number, data) == (part, payload[begin:end])


def test_a_part_that_was_changed_is_told() -> None:
    message = bytearray(part_message(memoryview(bytes(200 * KIB)), GRID, 1))
    message[-1] ^= 1
    with pytest.raises(CorruptedError, match="the checksum of part 1 does not hold"):
        check_part(*read_part(bytes(message), GRID))


def test_a_part_too_short_or_too_long_is_refused_at_its_length() -> None:
    with pytest.raises(InvalidMessageError, match="a part of 16 bytes"):
        read_part(bytes(16), GRID)
    with pytest.raises(TooLargeError, match="a part of 1048577 bytes of data; at most 1048576 are allowed"):
        read_part(bytes(16 + LARGEST_PART_BYTES + 1), GRID)


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
