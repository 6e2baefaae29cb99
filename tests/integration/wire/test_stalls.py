"""A call whose peer stops sending or reading is ended after a time, and delays no other."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest

from diloco.wire.client.client import ClientOptions
from diloco.wire.convert import pack, pack_learner
from diloco.wire.errors import DeadlineError
from diloco.wire.messages import Alive
from diloco.wire.server.server import ServerOptions
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import HEADER, JOIN, PARTS, PULL, REQUEST, STALL_SECONDS, push
from tests.support.raw_wire import RawClient, ending, push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer


def test_a_session_that_never_begins_is_ended(raw: RawClient) -> None:
    release = threading.Event()

    def nothing() -> Iterator[bytes]:
        release.wait()
        yield from ()

    ended = ending(raw.session(nothing()))
    release.set()
    assert ended == (grpc.StatusCode.DEADLINE_EXCEEDED, f"no Join came within {STALL_SECONDS:g} s")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ([pack(HEADER)], f"nothing arrived for {STALL_SECONDS:g} s; 4 of 4 parts are missing"),
        ([pack(HEADER), PARTS[0]], f"nothing arrived for {STALL_SECONDS:g} s; 3 of 4 parts are missing"),
    ],
    ids=["after the header", "after a part"],
)
def test_a_push_that_stops_moving_is_ended(keeper: Keeper, raw: RawClient, sent: list[bytes], text: str) -> None:
    assert ending(raw.parts(sent)) == (grpc.StatusCode.DEADLINE_EXCEEDED, text)
    if sent:
        assert keeper.push_ended.wait(30), "no other call went on with it"
        assert len(keeper.failed) == 1


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
    ended = LineLogged("pull_parts of")
    slow = raw.parts(PULL, "PullParts")
    next(slow)
    with BlockingClient(ClientOptions(server.address)) as client, client.open_session(JOIN) as session:
        said = iter(session)
        next(said)
        session.send(Alive(1))
        next(said)
        push(client)
    assert ended.wait(30)
    # Nothing is buffered beyond what flow control lets through.
    (region,) = server.traffic.read()
    assert 0 < region.down.bulk < len(payload)
    assert ending(slow) == (grpc.StatusCode.DEADLINE_EXCEEDED, f"the learner read nothing for {STALL_SECONDS:g} s")


def test_a_reader_of_one_part_that_does_not_read_is_ended(keeper: Keeper, server: RunningServer) -> None:
    keeper.fragments[7] = bytes(1 << 20)
    ended = LineLogged("pull_parts of")
    narrow = [("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)]
    with RawClient(server.address, options=narrow) as raw:
        call = raw.parts([pack(REQUEST)], "PullParts")
        assert ended.wait(9)
        assert ending(call) == (grpc.StatusCode.DEADLINE_EXCEEDED, f"the learner read nothing for {STALL_SECONDS:g} s")


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


@pytest.mark.parametrize("transfer", ["push", "pull"])
def test_a_transfer_that_nobody_answers_leaves_its_connection(
    joined: BlockingClient, proxy: TcpProxy, transfer: str
) -> None:
    def send(seconds: float) -> object:
        if transfer == "push":
            return joined.push(push_header(4), memoryview(b"1234"), deadline_seconds=seconds)
        return joined.pull(REQUEST, lambda it: memoryview(bytearray(it.payload_bytes)), deadline_seconds=seconds)

    send(30)
    proxy.silence()
    with pytest.raises(DeadlineError):
        send(0.5)
    send(30)


@pytest.mark.parametrize(("large", "small"), [(8 << 20, 2 << 20), (1 << 20, 4)], ids=["parts", "one part"])
def test_a_deadline_does_not_break_the_transfer_of_another(large: int, small: int) -> None:
    keeper = Keeper({7: bytes(large), 8: bytes(small)})
    keeper.connections = 1
    with (
        RunningServer(keeper, ServerOptions("127.0.0.1:0")) as server,
        TcpProxy(server.address) as proxy,
        BlockingClient(ClientOptions(proxy.address)) as client,
        ThreadPoolExecutor(1) as pool,
        client.open_session(JOIN) as session,
    ):
        next(iter(session))  # says that there is one connection

        def pull(fragment: int, seconds: float) -> object:
            request = replace(REQUEST, fragment=fragment)
            return client.pull(request, lambda it: memoryview(bytearray(it.payload_bytes)), deadline_seconds=seconds)

        for _ in range(2):  # the second knows how long it is
            pull(8, 30)
            pull(7, 30)
        opened = proxy.connections
        proxy.hold_answer_after_bytes(large // 8)
        first = pool.submit(pull, 7, 30)
        assert proxy.held.wait(30)
        with pytest.raises(DeadlineError):
            pull(8, 0.5)
        proxy.release()
        first.result()
        assert proxy.connections == opened
