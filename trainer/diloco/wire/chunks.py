"""Sends a payload as a stream of checked chunks, with one buffer on either side.

A chunk is 16 bytes of header, little-endian, u64 offset of the data in the payload and u64 XXH3-64 of the data, then
the data. Chunks come in order and without gaps, so a payload is complete when its length is reached.
"""

import struct
from collections.abc import Iterator

import xxhash

from diloco.wire.errors import CorruptedError, InvalidMessageError, TooLargeError

_HEADER = struct.Struct("<QQ")
HEADER_BYTES = _HEADER.size
LARGEST_CHUNK_BYTES = 1 << 20
"""Most data in one chunk; a receiver refuses more. It bounds what gRPC holds for each call (4 MiB in earlier versions,
which never sent more than this)."""
DIGEST_BYTES = 16


def payload_digest(payload: memoryview) -> bytes:
    """XXH3-128 of a payload, 16 bytes."""
    return xxhash.xxh3_128_digest(payload)


def chunks_of(payload: memoryview, chunk_bytes: int) -> Iterator[bytes]:
    """``payload`` (contiguous bytes) as messages of up to ``chunk_bytes`` of data, made one at a time."""
    for offset in range(0, len(payload), chunk_bytes):
        data = payload[offset : offset + chunk_bytes]
        yield b"".join((_HEADER.pack(offset, xxhash.xxh3_64_intdigest(data)), data))


class PayloadReceiver:
    """Writes chunks to their places in one buffer, and checks that all have arrived."""

    def __init__(self, buffer: memoryview) -> None:
        """Receive into ``buffer`` (writable, contiguous bytes, exactly as long as the payload)."""
        self._buffer = buffer
        self._digest = xxhash.xxh3_128()
        self._received = 0

    @property
    def received_bytes(self) -> int:
        """Bytes received, counted from the start of the payload."""
        return self._received

    def add(self, message: bytes) -> None:
        """Add the next chunk.

        Raises:
            InvalidMessageError: it is not a chunk, or not the next one.
            TooLargeError: it is longer than a chunk may be, or exceeds the end of the payload.
            CorruptedError: its checksum is wrong.
        """
        size = len(message) - HEADER_BYTES
        if size <= 0:
            raise InvalidMessageError(f"a chunk of {len(message)} bytes: it has {HEADER_BYTES} of header and some data")
        if size > LARGEST_CHUNK_BYTES:
            raise TooLargeError(f"a chunk of {size} bytes of data; at most {LARGEST_CHUNK_BYTES} are allowed")
        offset, checksum = _HEADER.unpack_from(message)
        if offset != self._received:
            raise InvalidMessageError(f"a chunk at offset {offset} where {self._received} comes next")
        end = offset + size
        if end > len(self._buffer):
            raise TooLargeError(f"a chunk up to byte {end} of a payload of {len(self._buffer)} bytes")
        data = memoryview(message)[HEADER_BYTES:]
        # Checked in the message, right before it is copied, so that checksum and copy read it while it is in the cache.
        if xxhash.xxh3_64_intdigest(data) != checksum:
            raise CorruptedError(f"the checksum of the chunk at offset {offset} does not hold")
        self._buffer[offset:end] = data
        self._digest.update(data)
        self._received = end

    def finish(self, expected_digest: bytes) -> bytes:
        """The payload's XXH3-128, once all chunks were added. An empty ``expected_digest`` is not compared.

        Raises:
            CorruptedError: the payload is incomplete, or its digest is not the expected one.
        """
        if self._received != len(self._buffer):
            raise CorruptedError(f"the payload ended after {self._received} of {len(self._buffer)} bytes")
        digest = self._digest.digest()
        if expected_digest not in (b"", digest):
            raise CorruptedError("the digest of the payload does not hold")
        return digest
