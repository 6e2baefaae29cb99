"""What a broken link or a broken peer can do to the wire: end its own call, with one line, and nothing else.

Every test ends with the server still serving a well-behaved learner, no traceback in its log, and nothing left over.
"""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
import pytest

from diloco.wire.chunks import LARGEST_CHUNK_BYTES
from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.convert import LARGEST_MESSAGE_BYTES, pack, pack_learner
from diloco.wire.errors import CorruptedError, InvalidMessageError, RefusedError, UnavailableError
from diloco.wire.handler import Send
from diloco.wire.messages import Alive, Join, LearnerMessage, PullHeader, PullRequest, Ready
from diloco.wire.server import ServerOptions
from diloco.wire.tls import Peer
from diloco.wire.v1 import sync_pb2
from tests.support.raw_wire import RawClient, chunk, ending, push_header, push_messages
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import PAYLOAD_LIMIT_BYTES, Keeper, RunningServer

STALL_SECONDS = 1.0
PAYLOAD = os.urandom(8 << 20)
JOIN = Join("job", "a/b/0", "instance", "layout")
REQUEST = PullRequest("a/b/0", 1, 7, 3, "epoch")


@pytest.fixture
def keeper() -> Keeper:
    return Keeper({7: PAYLOAD})


@pytest.fixture
def server(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> Iterator[RunningServer]:
    caplog.set_level(logging.INFO)
    with RunningServer(keeper, ServerOptions("127.0.0.1:0", stall_seconds=STALL_SECONDS)) as running:
        yield running
        with SyncClient(ClientOptions(running.address)) as client, client.open_session(JOIN) as session:
            next(iter(session))
            assert client.push(push_header(4, fragment=9), memoryview(b"1234"), deadline_seconds=30).accepted
    assert running.loop_complaints == []
    assert keeper.buffers_in_use == 0
    for record in caplog.records:
        assert record.exc_info is None, record
        assert "\n" not in record.getMessage()
        assert record.levelno < logging.ERROR, record


@pytest.fixture
def raw(server: RunningServer) -> Iterator[RawClient]:
    with RawClient(server.address) as made:
        yield made


def gets_through(call: Callable[[], object]) -> None:
    """It succeeds again by itself; the first tries may still meet the connection that is going down."""
    for _ in range(9):
        with contextlib.suppress(UnavailableError):
            call()
            return
    call()


def test_a_connection_cut_in_the_middle_of_a_push(keeper: Keeper, server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as client:
        proxy.cut_after_bytes(len(PAYLOAD) // 2, not_before=keeper.accepted)
        with pytest.raises(UnavailableError):
            client.push(push_header(len(PAYLOAD)), memoryview(PAYLOAD), deadline_seconds=30)
        assert proxy.was_cut.is_set()
        assert keeper.push_ended.wait(30)
        ((header, reason),) = keeper.failed
        assert header == push_header(len(PAYLOAD))
        assert f"of {len(PAYLOAD)} bytes" in reason
        # The link is back: the same client gets the same fragment through.
        gets_through(lambda: client.push(push_header(len(PAYLOAD)), memoryview(PAYLOAD), deadline_seconds=30))
    assert [payload for _, payload in keeper.pushes] == [PAYLOAD]


def test_a_connection_cut_in_the_middle_of_a_pull(server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as client:
        buffer = bytearray(len(PAYLOAD))
        proxy.cut_after_bytes(len(PAYLOAD) // 2)
        with pytest.raises(UnavailableError):
            client.pull(REQUEST, lambda _: memoryview(buffer), deadline_seconds=30)
        gets_through(lambda: client.pull(REQUEST, lambda _: memoryview(buffer), deadline_seconds=30))
        assert buffer == PAYLOAD


def test_a_session_cut_off_ends_for_both_sides(keeper: Keeper, server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as client:
        session = client.open_session(JOIN)
        said = iter(session)
        next(said)
        proxy.cut()
        with pytest.raises(UnavailableError):
            list(said)
        assert keeper.session_ended.wait(30)
        with pytest.raises(UnavailableError):
            session.send(Alive(1))
        gets_through(lambda: next(iter(client.open_session(JOIN))))


def test_a_push_cut_off_leaves_the_session_of_its_learner_alone(keeper: Keeper, server: RunningServer) -> None:
    with SyncClient(ClientOptions(server.address)) as control, control.open_session(JOIN) as session:
        said = iter(session)
        next(said)
        with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as bulk:
            proxy.cut_after_bytes(1 << 20, not_before=keeper.accepted)
            with pytest.raises(UnavailableError):
                bulk.push(push_header(len(PAYLOAD)), memoryview(PAYLOAD), deadline_seconds=30)
        assert keeper.push_ended.wait(30)
        session.send(Alive(1))
        assert next(said) is not None


DATA = os.urandom(3000)
WHOLE = push_messages(DATA, 1000)
HEADER = pack(push_header(3000))


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


def test_a_session_that_never_begins_is_ended(raw: RawClient) -> None:
    release = threading.Event()

    def nothing() -> Iterator[bytes]:
        release.wait()
        yield from ()

    ended = ending(raw.session(nothing()))
    release.set()
    assert ended == (grpc.StatusCode.DEADLINE_EXCEEDED, f"no Join came within {STALL_SECONDS:g} s")


@pytest.mark.parametrize("sent", [0, 1, 2], ids=["before the header", "after the header", "after a chunk"])
def test_a_push_that_stops_moving_is_ended(keeper: Keeper, raw: RawClient, sent: int) -> None:
    release = threading.Event()

    def some() -> Iterator[bytes]:
        yield from WHOLE[:sent]
        release.wait()

    ended = raw.push(some())
    release.set()
    assert isinstance(ended, tuple)
    assert ended[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(keeper.failed) == (1 if sent else 0)


class LineLogged(logging.Handler):
    """Waits for the server to log a line that begins so."""

    def __init__(self, beginning: str) -> None:
        super().__init__()
        self._beginning = beginning
        self._logged = threading.Event()
        logging.getLogger("diloco.wire").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self._beginning):
            self._logged.set()

    def wait(self, seconds: float) -> bool:
        logged = self._logged.wait(seconds)
        logging.getLogger("diloco.wire").removeHandler(self)
        return logged


def test_a_reader_that_does_not_read_is_ended_and_holds_up_nobody(
    keeper: Keeper, server: RunningServer, raw: RawClient
) -> None:
    keeper.fragments[7] = payload = bytes(64 << 20)
    ended = LineLogged("pull of")
    slow = raw.pull(pack(REQUEST))
    next(slow)
    with SyncClient(ClientOptions(server.address)) as client, client.open_session(JOIN) as session:
        said = iter(session)
        next(said)
        session.send(Alive(1))
        next(said)
        assert client.push(push_header(len(PAYLOAD)), memoryview(PAYLOAD), deadline_seconds=30).accepted
    # Nothing is buffered beyond what flow control lets through.
    assert server.server.bytes_sent < len(payload)
    assert ended.wait(30)
    assert ending(slow) == (grpc.StatusCode.DEADLINE_EXCEEDED, f"the learner read nothing for {STALL_SECONDS:g} s")


def test_a_learner_that_does_not_take_its_messages_is_ended(keeper: Keeper) -> None:
    options = ServerOptions("127.0.0.1:0", queued_messages=100)
    keeper.chatter = 100_000
    with RunningServer(keeper, options) as running, RawClient(running.address) as raw:
        call = raw.session([pack_learner(JOIN)])
        assert keeper.session_ended.wait(30)
        assert ending(call) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "100 messages are waiting for the learner",
        )


def test_a_fault_of_the_handler_is_an_error_of_one_line_for_the_learner(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Keeper):
        async def open_pull(self, *_: object) -> tuple[PullHeader, memoryview]:
            raise KeyError("secret internals")

    with RunningServer(Broken()) as running, RawClient(running.address) as raw:
        ended = ending(raw.pull(pack(REQUEST)))
    assert ended == (grpc.StatusCode.INTERNAL, "the syncer failed; see its log")
    assert "secret internals" in caplog.text  # here a traceback is wanted: the fault is ours


class Strict(Keeper):
    """Ends a session in which a rule is broken, but only once the learner has hung up."""

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        await super().session(join, peer, inbound, send)
        for _ in range(20):  # the call hears of it meanwhile
            await asyncio.sleep(0)
        raise InvalidMessageError("fragment 99 of 4: they count from 0")


def test_a_learner_that_breaks_a_rule_and_hangs_up_leaves_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    keeper = Strict()
    with RunningServer(keeper) as server:
        with RawClient(server.address) as client:
            call = client.session([pack_learner(Join("job", "a/b/0", "instance", "layout"))])
            next(call)
            call.cancel()
        assert keeper.session_ended.wait(30)
    gc.collect()
    assert server.loop_complaints == []
    (line,) = [record.getMessage() for record in caplog.records if "session of" in record.getMessage()]
    assert "ended: fragment 99 of 4: they count from 0" in line


def test_that_a_learner_is_refused_is_told_and_that_a_fragment_is_too_late_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strict(Keeper):
        async def session(self, *_: object) -> None:
            raise RefusedError("of another job")

        async def open_pull(self, *_: object) -> tuple[PullHeader, memoryview]:
            raise RefusedError("too late")

    caplog.set_level(logging.INFO)
    with RunningServer(Strict()) as running:
        with RawClient(running.address) as raw:
            assert ending(raw.pull(pack(REQUEST))) == (grpc.StatusCode.FAILED_PRECONDITION, "too late")
        with (
            SyncClient(ClientOptions(running.address)) as client,
            client.open_session(JOIN) as session,
            pytest.raises(RefusedError),
        ):
            next(iter(session))
    assert "of another job" in caplog.text
    assert "too late" not in caplog.text


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
            # Reset instead of an orderly end.
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
