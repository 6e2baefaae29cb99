"""Messages that are wrong end their own call, with one line that names what is wrong."""

import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
import pytest

from diloco.wire.chunks import LARGEST_CHUNK_BYTES
from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.convert import LARGEST_MESSAGE_BYTES, pack, pack_learner
from diloco.wire.errors import CorruptedError, InvalidMessageError
from diloco.wire.messages import PullHeader, Ready
from diloco.wire.v1 import sync_pb2
from tests.integration.wire.calls import DATA, HEADER, JOIN, REQUEST, WHOLE
from tests.support.raw_wire import RawClient, chunk, ending, push_header
from tests.support.wire_syncer import PAYLOAD_LIMIT_BYTES, Keeper, RunningServer


@pytest.mark.parametrize(
    ("messages", "status", "text"),
    [
        ([], grpc.StatusCode.INVALID_ARGUMENT, "a push without a header"),
        ([b"\xff\xff\xff garbage"], grpc.StatusCode.INVALID_ARGUMENT, "not a PushHeader"),
        ([bytes(LARGEST_MESSAGE_BYTES + 1)], grpc.StatusCode.RESOURCE_EXHAUSTED, "PushHeader of 1048577 bytes"),
        ([pack(push_header(PAYLOAD_LIMIT_BYTES + 1))], grpc.StatusCode.FAILED_PRECONDITION, "were not asked for"),
        ([pack(push_header((1 << 63) - 1))], grpc.StatusCode.FAILED_PRECONDITION, "were not asked for"),
        (
            [sync_pb2.PushHeader(payload_bytes=(1 << 64) - 1).SerializeToString()],
            grpc.StatusCode.INVALID_ARGUMENT,
            "PushHeader.payload_bytes is 18446744073709551615",
        ),
        (WHOLE[:-1], grpc.StatusCode.DATA_LOSS, "ended after 2000 of 3000 bytes"),
        ([HEADER], grpc.StatusCode.DATA_LOSS, "ended after 0 of 3000 bytes"),
        ([*WHOLE[:2], WHOLE[3]], grpc.StatusCode.INVALID_ARGUMENT, "offset 2000 where 1000 comes next"),
        ([*WHOLE[:2], WHOLE[1]], grpc.StatusCode.INVALID_ARGUMENT, "offset 0 where 1000 comes next"),
        ([*WHOLE[:2], chunk(500, DATA[500:2000])], grpc.StatusCode.INVALID_ARGUMENT, "offset 500 where 1000"),
        ([*WHOLE, chunk(3000, b"more")], grpc.StatusCode.RESOURCE_EXHAUSTED, "byte 3004 of a payload of 3000"),
        ([HEADER, chunk(0, DATA, checksum=1)], grpc.StatusCode.DATA_LOSS, "checksum of the chunk at offset 0"),
        ([HEADER, WHOLE[1][:-1] + b"\0\0"], grpc.StatusCode.DATA_LOSS, "checksum of the chunk at offset 0"),
        ([HEADER, WHOLE[1][:500]], grpc.StatusCode.DATA_LOSS, "checksum of the chunk at offset 0"),
        ([HEADER, b"short"], grpc.StatusCode.INVALID_ARGUMENT, "a chunk of 5 bytes"),
        ([HEADER, b""], grpc.StatusCode.INVALID_ARGUMENT, "a chunk of 0 bytes"),
        ([HEADER, chunk(0, bytes(LARGEST_CHUNK_BYTES + 1))], grpc.StatusCode.RESOURCE_EXHAUSTED, "1048576 are allowed"),
        ([HEADER, chunk(0, bytes(6 << 20))], grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        ([pack(push_header(3000, digest=bytes(16))), *WHOLE[1:]], grpc.StatusCode.DATA_LOSS, "digest of the payload"),
    ],
    ids=[
        "nothing",
        "garbage header",
        "oversized header",
        "oversized payload",
        "absurd payload",
        "payload out of range",
        "truncated",
        "header only",
        "gap",
        "repeated",
        "overlap",
        "too much",
        "wrong checksum",
        "changed length",
        "truncated chunk",
        "short chunk",
        "empty chunk",
        "oversized chunk",
        "oversized message",
        "wrong digest",
    ],
)
def test_a_push_that_is_wrong_is_refused_by_name(
    keeper: Keeper, raw: RawClient, messages: list[bytes], status: grpc.StatusCode, text: str
) -> None:
    ended = raw.push(messages)
    assert isinstance(ended, tuple)
    assert ended[0] is status
    assert text in ended[1]
    assert "\n" not in ended[1]
    assert [payload for header, payload in keeper.pushes if header.fragment == 0] == []


def test_a_compressed_message_is_refused(raw: RawClient, keeper: Keeper) -> None:
    bomb = [HEADER, bytes(3 << 20)]
    ended = raw.push(bomb, compression=grpc.Compression.Gzip)
    assert isinstance(ended, tuple)
    assert ended[0] is grpc.StatusCode.UNIMPLEMENTED
    assert keeper.pushes == []


def test_another_version_of_the_service_is_unknown(server: RunningServer) -> None:
    with RawClient(server.address, service="diloco.wire.v2.Sync") as client:
        ended = client.push(WHOLE)
        assert isinstance(ended, tuple)
        assert ended[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("messages", "status", "text"),
    [
        ([], grpc.StatusCode.INVALID_ARGUMENT, "begins with Join"),
        ([b"\xff\xff garbage"], grpc.StatusCode.INVALID_ARGUMENT, "not a LearnerMessage"),
        ([b""], grpc.StatusCode.INVALID_ARGUMENT, "without a known body"),
        ([pack_learner(Ready(1))], grpc.StatusCode.INVALID_ARGUMENT, "begins with Join"),
        ([pack_learner(JOIN), b"\xff garbage"], grpc.StatusCode.INVALID_ARGUMENT, "not a LearnerMessage"),
        ([bytes(LARGEST_MESSAGE_BYTES + 1)], grpc.StatusCode.RESOURCE_EXHAUSTED, "LearnerMessage of"),
        ([pack_learner(JOIN), bytes(6 << 20)], grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        (
            [sync_pb2.LearnerMessage(join=sync_pb2.Join(protocol=7, learner="a/b/0")).SerializeToString()],
            grpc.StatusCode.UNIMPLEMENTED,
            "the learner speaks protocol 7, the syncer 1",
        ),
    ],
    ids=["nothing", "garbage", "empty", "no join", "garbage later", "large", "too large", "other version"],
)
def test_a_session_that_is_wrong_ends_by_name(
    keeper: Keeper, raw: RawClient, messages: list[bytes], status: grpc.StatusCode, text: str
) -> None:
    ended = ending(raw.session(messages))
    assert ended[0] is status
    assert text in ended[1]
    if keeper.joined.is_set():
        assert keeper.session_ended.wait(30)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(4096), b""],
    ids=["HTTP/1", "random bytes", "random frames", "nothing"],
)
def test_what_is_not_grpc_is_dropped(server: RunningServer, garbage: bytes) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(garbage)
        if not garbage:
            # Reset instead of closed in order.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class LyingServer:
    """A syncer that answers pulls with given messages."""

    def __init__(self, messages: list[bytes]) -> None:
        def pull(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
            yield from messages

        self._server = grpc.server(ThreadPoolExecutor(1))
        handlers: dict[str, Any] = {"PullFragment": grpc.unary_stream_rpc_method_handler(pull)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("diloco.wire.v1.Sync", handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        ([], CorruptedError, "no header"),
        ([b"\xff garbage"], InvalidMessageError, "not a PullHeader"),
        ([pack(PullHeader(8, 3, 3000))], InvalidMessageError, "got fragment 8"),
        ([pack(PullHeader(7, 2, 3000))], InvalidMessageError, "of version 2"),
        ([pack(PullHeader(7, 3, 3000)), *WHOLE[1:-1]], CorruptedError, "ended after 2000 of 3000"),
        ([pack(PullHeader(7, 3, 3000)), *WHOLE[1:3], WHOLE[1]], InvalidMessageError, "offset 0 where 2000"),
        ([pack(PullHeader(7, 3, 3000)), chunk(0, DATA, checksum=1)], CorruptedError, "checksum"),
        ([pack(PullHeader(7, 3, 3000, bytes(16))), *WHOLE[1:]], CorruptedError, "digest"),
    ],
    ids=["nothing", "garbage", "other fragment", "old version", "truncated", "repeated", "changed", "wrong digest"],
)
def test_an_answer_to_a_pull_that_is_wrong_is_not_believed(
    messages: list[bytes], error: type[Exception], text: str
) -> None:
    with LyingServer(messages) as server, SyncClient(ClientOptions(server.address)) as client:
        buffer = memoryview(bytearray(3000))
        with pytest.raises(error, match=text):
            client.pull(REQUEST, lambda _: buffer, deadline_seconds=30)
