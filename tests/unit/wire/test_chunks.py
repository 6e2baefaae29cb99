import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from diloco.wire.chunks import HEADER_BYTES, LARGEST_CHUNK_BYTES, PayloadReceiver, chunks_of, payload_digest
from diloco.wire.errors import CorruptedError, InvalidMessageError, TooLargeError, WireError


def chunk(offset: int, data: bytes) -> bytes:
    return struct.pack("<QQ", offset, xxhash.xxh3_64_intdigest(data)) + data


def receiver_of(size: int) -> tuple[bytearray, PayloadReceiver]:
    buffer = bytearray(size)
    return buffer, PayloadReceiver(memoryview(buffer))


@given(st.binary(max_size=500), st.integers(1, 200))
def test_a_payload_arrives_whole_whatever_the_chunks(payload: bytes, chunk_bytes: int) -> None:
    buffer, receiver = receiver_of(len(payload))
    for message in chunks_of(memoryview(payload), chunk_bytes):
        assert len(message) <= HEADER_BYTES + chunk_bytes
        receiver.add(message)
    assert receiver.finish(b"") == payload_digest(memoryview(payload)) == xxhash.xxh3_128_digest(payload)
    assert buffer == payload


@given(st.binary(min_size=2, max_size=100), st.data())
def test_any_flipped_bit_is_found(payload: bytes, data: st.DataObject) -> None:
    _, receiver = receiver_of(len(payload))
    (message,) = chunks_of(memoryview(payload), len(payload))
    bit = data.draw(st.integers(0, len(message) * 8 - 1))
    flipped = bytearray(message)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises((CorruptedError, InvalidMessageError, TooLargeError)):
        receiver.add(bytes(flipped))


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        ([chunk(0, b"abcd"), chunk(5, b"f")], InvalidMessageError, "offset 5 where 4 comes next"),
        ([chunk(0, b"abcd"), chunk(3, b"ef")], InvalidMessageError, "offset 3 where 4 comes next"),
        ([chunk(0, b"abcd"), chunk(0, b"abcd")], InvalidMessageError, "offset 0 where 4 comes next"),
        ([chunk(2**64 - 1, b"abcd")], InvalidMessageError, "where 0 comes next"),
        ([chunk(0, b"abcdefg")], TooLargeError, "up to byte 7 of a payload of 6"),
        ([chunk(0, b"")], InvalidMessageError, "a chunk of 16 bytes"),
        ([b""], InvalidMessageError, "a chunk of 0 bytes"),
        ([b"x" * 15], InvalidMessageError, "a chunk of 15 bytes"),
        ([chunk(0, b"abcd")[:-1] + b"x"], CorruptedError, "offset 0"),
        ([chunk(0, b"abcdef"), chunk(6, b"g")], TooLargeError, "up to byte 7 of a payload of 6"),
    ],
    ids=["gap", "overlap", "twice", "huge offset", "past the end", "no data", "empty", "short", "changed", "one more"],
)
def test_a_chunk_that_does_not_belong_is_refused(messages: list[bytes], error: type[WireError], text: str) -> None:
    _, receiver = receiver_of(6)
    *good, bad = messages
    for message in good:
        receiver.add(message)
    before = receiver.received_bytes
    with pytest.raises(error, match=text):
        receiver.add(bad)
    assert receiver.received_bytes == before


def test_a_chunk_above_the_limit_is_refused() -> None:
    _, receiver = receiver_of(LARGEST_CHUNK_BYTES + 1)
    with pytest.raises(TooLargeError, match=f"at most {LARGEST_CHUNK_BYTES}"):
        receiver.add(bytes(HEADER_BYTES + LARGEST_CHUNK_BYTES + 1))


def test_a_payload_that_ends_early_is_not_whole() -> None:
    _, receiver = receiver_of(6)
    receiver.add(chunk(0, b"abcd"))
    with pytest.raises(CorruptedError, match="ended after 4 of 6 bytes"):
        receiver.finish(b"")


def test_the_digest_of_the_whole_is_compared() -> None:
    _, receiver = receiver_of(4)
    receiver.add(chunk(0, b"abcd"))
    with pytest.raises(CorruptedError, match="digest"):
        receiver.finish(bytes(16))
    assert receiver.finish(xxhash.xxh3_128_digest(b"abcd")) == xxhash.xxh3_128_digest(b"abcd")
