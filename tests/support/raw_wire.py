"""A gRPC client that sends whatever a test wants, on the wire's own methods, without checks or limits of its own."""

import struct
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import grpc
import xxhash

from diloco.wire.convert import pack
from diloco.wire.messages import PushHeader

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def push_header(payload_bytes: int, *, learner: str = "a/b/0", fragment: int = 0, digest: bytes = b"") -> PushHeader:
    return PushHeader(learner, 1, fragment, 1, 1, 0, 1, 1, "None", payload_bytes, "epoch", digest)


def chunk(offset: int, data: bytes, checksum: int | None = None) -> bytes:
    sum_of_data = xxhash.xxh3_64_intdigest(data) if checksum is None else checksum
    return struct.pack("<QQ", offset, sum_of_data) + data


def push_messages(payload: bytes, chunk_bytes: int) -> list[bytes]:
    chunks = [chunk(i, payload[i : i + chunk_bytes]) for i in range(0, len(payload), chunk_bytes)]
    return [pack(push_header(len(payload))), *chunks]


class RawClient:
    """Calls by method name; an answer, or the status and text that the call ended with."""

    def __init__(self, address: str, service: str = "diloco.wire.v1.Sync", options: Iterable[Any] = ()) -> None:
        self.channel = grpc.insecure_channel(address, options=[*UNLIMITED, *options])
        self._service = service
        self._closed = threading.Event()

    def push(self, messages: Iterable[bytes], **extra: Any) -> bytes | tuple[grpc.StatusCode, str]:
        call: Any = self.channel.stream_unary(f"/{self._service}/PushFragment")
        try:
            answer: bytes = call(iter(messages), timeout=30, **extra)
        except grpc.RpcError as error:
            return _end_of(error)
        return answer

    def half_open_push(self, header: PushHeader) -> Any:
        """Begin a push, send nothing after its header and never end it; returns the call."""
        call: Any = self.channel.stream_stream(f"/{self._service}/PushFragment")

        def messages() -> Iterator[bytes]:
            yield pack(header)
            self._closed.wait()

        return call(messages(), timeout=30)

    def parts(self, messages: Iterable[bytes], method: str = "PushParts") -> Any:
        """Begin a call of a transfer in parts, send these and never end it; returns the call."""
        call: Any = self.channel.stream_stream(f"/{self._service}/{method}")

        def all_of_them() -> Iterator[bytes]:
            yield from messages
            self._closed.wait()

        return call(all_of_them(), timeout=30)

    def pull(self, request: bytes) -> Any:
        call: Any = self.channel.unary_stream(f"/{self._service}/PullFragment")
        return call(request, timeout=30)

    def session(self, messages: Iterable[bytes]) -> Any:
        call: Any = self.channel.stream_stream(f"/{self._service}/Session")
        return call(iter(messages), timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._closed.set()
        self.channel.close()


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
