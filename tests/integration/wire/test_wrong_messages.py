"""Messages that are wrong end their own call, with one line that names what is wrong."""

import dataclasses
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
import pytest

from diloco.wire.client.client import ClientOptions
from diloco.wire.convert import LARGEST_MESSAGE_BYTES, pack, pack_learner
from diloco.wire.errors import CorruptedError, InvalidMessageError, UnavailableError
from diloco.wire.messages import Progress, PullHeader, PushHeader, Ready, Welcome
from diloco.wire.v1 import sync_pb2
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import DATA, HEADER, JOIN, PART, PARTS, REQUEST
from tests.support.raw_wire import RawClient, ending, part_at, push_header
from tests.support.wire_syncer import PAYLOAD_LIMIT_BYTES, Keeper, RunningServer


def sized(payload_bytes: int, digest: bytes = b"") -> PushHeader:
    return push_header(payload_bytes, digest=digest, part_bytes=PART)


CUT = pack(HEADER)
EARLY = grpc.StatusCode.UNAVAILABLE
"""The learner may have lost its connection, and goes on with the push."""


@pytest.mark.parametrize(
    ("messages", "status", "text"),
    [
        ([], grpc.StatusCode.INVALID_ARGUMENT, "a push without a header"),
        ([b"\xff\xff\xff garbage"], grpc.StatusCode.INVALID_ARGUMENT, "not a PushHeader"),
        ([bytes(64 << 10)], grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        ([CUT, bytes(6 << 20)], grpc.StatusCode.RESOURCE_EXHAUSTED, ""),
        ([pack(sized(PAYLOAD_LIMIT_BYTES + 1))], grpc.StatusCode.FAILED_PRECONDITION, "were not asked for"),
        (
            [sync_pb2.PushHeader(payload_bytes=(1 << 64) - 1).SerializeToString()],
            grpc.StatusCode.INVALID_ARGUMENT,
            "PushHeader.payload_bytes is 18446744073709551615",
        ),
        ([CUT, PARTS[0], PARTS[3]], EARLY, "the push ended too early; 2 of 4 parts are missing"),
        ([CUT], EARLY, "the push ended too early; 4 of 4 parts are missing"),
        ([pack(sized(len(DATA), digest=bytes(16))), *PARTS], grpc.StatusCode.DATA_LOSS, "digest of the payload"),
    ],
    ids=[
        "nothing",
        "garbage header",
        "oversized header",
        "oversized message",
        "oversized payload",
        "payload out of range",
        "gap",
        "header only",
        "wrong digest",
    ],
)
def test_a_push_that_is_wrong_is_refused_by_name(
    keeper: Keeper, raw: RawClient, messages: list[bytes], status: grpc.StatusCode, text: str
) -> None:
    ended = ending(raw.push(messages))
    assert ended[0] is status
    assert text in ended[1]
    assert "\n" not in ended[1]
    if keeper.accepted.is_set():
        assert keeper.push_ended.wait(30)
        assert len(keeper.failed) == 1
    assert [payload for header, payload in keeper.pushes if header.fragment == 0] == []


def test_a_compressed_message_is_refused(raw: RawClient, keeper: Keeper) -> None:
    ended = ending(raw.push([CUT, bytes(3 << 20)], compression=grpc.Compression.Gzip))
    assert ended[0] is grpc.StatusCode.UNIMPLEMENTED
    assert keeper.push_ended.wait(30)
    assert keeper.pushes == []


def test_another_version_of_the_service_is_unknown(server: RunningServer) -> None:
    with RawClient(server.address, service="diloco.wire.v2.Sync") as client:
        assert ending(client.push([CUT]))[0] is grpc.StatusCode.UNIMPLEMENTED


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
        def pull(requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
            next(requests)  # what is asked for
            next(requests, None)  # and of several parts what the learner has
            yield from messages

        self._server = grpc.server(ThreadPoolExecutor(1))
        handlers: dict[str, Any] = {"PullParts": grpc.stream_stream_rpc_method_handler(pull)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("diloco.wire.v1.Sync", handlers),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()


def offer(fragment: int = 7, version: int = 3, digest: bytes = b"") -> bytes:
    return pack(PullHeader(fragment, version, len(DATA), digest, part_bytes=PART))


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        ([], CorruptedError, "no header"),
        ([b"\xff garbage"], InvalidMessageError, "not a PullHeader"),
        ([offer(fragment=8)], InvalidMessageError, "got fragment 8"),
        ([offer(version=2)], InvalidMessageError, "of version 2"),
        ([pack(PullHeader(7, 3, 1 << 62, part_bytes=1))], InvalidMessageError, "part_bytes 1 for a payload"),
        ([offer(), *PARTS[:-1]], UnavailableError, "the syncer ended the call"),
        ([offer(), *PARTS[:2], PARTS[0]], InvalidMessageError, "part 0 of 4 came twice on one connection"),
        ([offer(), part_at(0, DATA[:PART], checksum=1)], CorruptedError, "the checksum of part 0 does not hold"),
        ([offer(digest=bytes(16)), *PARTS], CorruptedError, "digest"),
    ],
    ids=[
        "nothing",
        "garbage",
        "other fragment",
        "old version",
        "absurd",
        "truncated",
        "repeated",
        "changed",
        "wrong digest",
    ],
)
def test_an_answer_to_a_pull_that_is_wrong_is_not_believed(
    messages: list[bytes], error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diloco.wire.client.calls._BROKEN_SECONDS", 0.0)
    with LyingServer(messages) as server, BlockingClient(ClientOptions(server.address)) as client:
        client.client.note_terms(Welcome(1, "epoch", (), (), 0, 0, Progress(0, 1, 0)))
        buffer = memoryview(bytearray(len(DATA)))
        with pytest.raises(error, match=text):
            client.pull(REQUEST, lambda _: buffer, deadline_seconds=30)


def whole(**changes: Any) -> bytes:
    return pack(dataclasses.replace(PullHeader(7, 3, PART, part_bytes=PART), **changes))


@pytest.mark.parametrize(
    ("header", "one", "error", "text"),
    [
        (b"\xff\xff\xff", PARTS[0], InvalidMessageError, "not a PullHeader"),
        (whole(fragment=8), PARTS[0], InvalidMessageError, "got fragment 8"),
        (whole(version=2), PARTS[0], InvalidMessageError, "of version 2"),
        (whole(payload_bytes=1 << 62, part_bytes=1), PARTS[0], InvalidMessageError, "part_bytes 1 for a payload"),
        (whole(), PARTS[0][:-1], InvalidMessageError, "65535 bytes at offset 0 are not one of 1 parts"),
        (whole(), part_at(0, DATA[:PART], 1), CorruptedError, "the checksum of part 0 does not hold"),
        (whole(payload_digest=bytes(16)), PARTS[0], CorruptedError, "digest"),
    ],
    ids=["garbage", "other", "old", "absurd", "short", "changed", "wrong digest"],
)
def test_an_answer_of_one_part_that_is_wrong_is_not_believed(
    header: bytes, one: bytes, error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diloco.wire.client.calls._BROKEN_SECONDS", 0.0)
    with LyingServer([header, one]) as server, BlockingClient(ClientOptions(server.address)) as client:
        client.client._earlier.pulled_bytes[7] = PART
        buffer = memoryview(bytearray(2 * PART))
        with pytest.raises(error, match=text):
            client.pull(REQUEST, lambda header: buffer[: header.payload_bytes], deadline_seconds=30)
