"""A gRPC client that sends whatever a test wants, on the wire's own methods, without checks or limits of its own."""

import dataclasses
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import xxhash

from diloco.wire.convert import pack
from diloco.wire.messages import PushHeader
from diloco.wire.parts import BLOCK_BYTES

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def push_header(
    payload_bytes: int, *, learner: str = "a/b/0", fragment: int = 0, digest: bytes = b"", part_bytes: int = 0
) -> PushHeader:
    return PushHeader(learner, 1, fragment, 1, 1, 0, 1, 1, "None", payload_bytes, "epoch", digest, part_bytes)


def part_at(offset: int, data: bytes, checksum: int | None = None) -> bytes:
    """A part as the protocol has it, written down a second time."""
    sums = b"".join(xxhash.xxh3_64_digest(data[i : i + BLOCK_BYTES]) for i in range(0, len(data), BLOCK_BYTES))
    if checksum is None:
        checksum = xxhash.xxh3_64_intdigest(sums, offset)
    return struct.pack("<QQ", offset, checksum) + data


class RawClient:
    """Calls by method name; an answer, or the status and text that the call ended with."""

    def __init__(self, address: str, service: str = "diloco.wire.v1.Sync", options: Iterable[Any] = ()) -> None:
        self.channel = grpc.insecure_channel(address, options=[*UNLIMITED, *options])
        self._service = service
        self._closed = threading.Event()

    def half_open_push(self, header: PushHeader) -> Any:
        """Begin a push, send nothing after its header and never end it; returns the call."""
        return self.parts([pack(dataclasses.replace(header, part_bytes=BLOCK_BYTES))])

    def push(self, messages: Sequence[bytes], **extra: Any) -> Any:
        """Begin a call of a push, send its header and these parts and end it; returns the call."""
        call: Any = self.channel.stream_stream(f"/{self._service}/PushParts")
        return call(iter(messages[1:]), timeout=30, metadata=_header(messages), **extra)

    def parts(self, messages: Sequence[bytes], method: str = "PushParts") -> Any:
        """Begin a call of a transfer, send these and never end it; returns the call. The first is a push's header."""
        call: Any = self.channel.stream_stream(f"/{self._service}/{method}")
        metadata = _header(messages) if method == "PushParts" else ()

        def all_of_them() -> Iterator[bytes]:
            yield from messages[len(metadata) :]
            self._closed.wait()

        return call(all_of_them(), timeout=30, metadata=metadata)

    def session(self, messages: Iterable[bytes]) -> Any:
        call: Any = self.channel.stream_stream(f"/{self._service}/Session")
        return call(iter(messages), timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._closed.set()
        self.channel.close()


def _header(messages: Sequence[bytes]) -> tuple[tuple[str, bytes], ...]:
    return tuple(("header-bin", header) for header in messages[:1])


def ending(call: Any) -> tuple[grpc.StatusCode, str]:
    """Read a stream to its end; returns the status and text that it ended with."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return _end_of(error)
    return call.code(), call.details()


def _end_of(error: Any) -> tuple[grpc.StatusCode, str]:
    return error.code(), error.details()
