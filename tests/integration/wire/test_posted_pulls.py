"""Pulls that wait at the server, over real gRPC: what ends them, and that they do not delay other calls."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from diloco.wire.client.client import ClientOptions
from diloco.wire.errors import DeadlineError, UnavailableError
from diloco.wire.messages import PullHeader, PullRequest
from diloco.wire.server.server import ServerOptions
from diloco.wire.tls.tls import Peer
from testbed.blocking_client import BlockingClient, ClosedError
from tests.support.raw_wire import RawClient, ending, push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer

PAYLOAD = os.urandom((5 << 20) + 3)
STALL_SECONDS = 3.0
WAIT_SECONDS = 60.0


class Patient(Keeper):
    """Lets posted pulls wait until ``make``; other pulls of fragment 8 are never answered."""

    def __init__(self, payload: bytes) -> None:
        super().__init__({7: payload})
        self.payload = payload
        self.waiting = threading.Semaphore(0)
        """Released by each pull that has begun to wait."""
        self.ended = threading.Semaphore(0)
        """Released by each that waits no more."""
        self._made: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def make(self) -> None:
        """Make the version."""
        assert self._loop is not None
        assert self._made is not None
        self._loop.call_soon_threadsafe(self._made.set)

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        if request.posted or request.fragment == 8:
            self._loop = asyncio.get_running_loop()
            self._made = self._made or asyncio.Event()
            self.waiting.release()
            try:
                await (self._made.wait() if request.posted else asyncio.Event().wait())
            finally:
                self.ended.release()
        return await super().open_pull(request, peer)


class Waiter:
    """A learner's pull that waits in a thread of its own."""

    def __init__(
        self, pool: ThreadPoolExecutor, client: BlockingClient, *, deadline_seconds: float = WAIT_SECONDS
    ) -> None:
        self._buffer: bytearray | None = None
        request = PullRequest("a/b/0", 1, 7, 3, "epoch", posted=True)
        self._pull = client.start_pull(request, self._allocate, deadline_seconds=deadline_seconds)
        self.withdraw = self._pull.cancel
        self.header: Future[PullHeader] = pool.submit(client.wait_for, self._pull)

    @property
    def received(self) -> bytes | None:
        """The content of its buffer; None: it has no buffer."""
        return None if self._buffer is None else bytes(self._buffer)

    def _allocate(self, header: PullHeader) -> memoryview:
        self._buffer = bytearray(header.payload_bytes)
        return memoryview(self._buffer)


@pytest.fixture(params=[PAYLOAD, PAYLOAD[:3]], ids=["parts", "one part"])
def keeper(request: pytest.FixtureRequest) -> Patient:
    return Patient(request.param)


def client_of(address: str, keeper: Patient) -> BlockingClient:
    """A client that knows how long the fragment is."""
    made = BlockingClient(ClientOptions(address))
    made.client._earlier.pulled_bytes[7] = len(keeper.payload)
    return made


@pytest.fixture
def client(server: RunningServer, keeper: Patient) -> Iterator[BlockingClient]:
    with client_of(server.address, keeper) as made:
        yield made


@pytest.fixture
def server(keeper: Patient) -> Iterator[RunningServer]:
    with RunningServer(keeper, ServerOptions("127.0.0.1:0", stall_seconds=STALL_SECONDS)) as running:
        yield running
    assert running.loop_complaints == []


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as made:
        yield made


def waits(keeper: Patient, pulls: int = 1) -> None:
    for _ in range(pulls):
        assert keeper.waiting.acquire(timeout=WAIT_SECONDS)


def ended(keeper: Patient, pulls: int = 1) -> None:
    for _ in range(pulls):
        assert keeper.ended.acquire(timeout=WAIT_SECONDS)


def test_a_posted_pull_holds_no_buffer_until_its_version_is_made(
    keeper: Patient, client: BlockingClient, pool: ThreadPoolExecutor
) -> None:
    waiter = Waiter(pool, client)
    waits(keeper)
    assert waiter.received is None
    keeper.make()
    assert waiter.header.result(WAIT_SECONDS).version == 3
    assert waiter.received == keeper.payload


def test_neither_sides_patience_with_a_transfer_counts_the_wait(
    keeper: Patient, server: RunningServer, client: BlockingClient, pool: ThreadPoolExecutor
) -> None:
    waiter = Waiter(pool, client, deadline_seconds=WAIT_SECONDS)
    hasty = Waiter(pool, client, deadline_seconds=0.1)
    waits(keeper, 2)
    # A call with an equally short deadline of its own ends; so the time is over for the two that wait as well.
    with pytest.raises(DeadlineError):
        client.pull(PullRequest("a/b/0", 1, 8, 3, "epoch"), lambda _: memoryview(b""), deadline_seconds=0.1)
    with RawClient(server.address) as raw:
        assert ending(raw.parts([], "PullParts"))[1] == f"no request came within {STALL_SECONDS:g} s"
    keeper.make()
    for one in (waiter, hasty):
        assert one.header.result(WAIT_SECONDS).version == 3
        assert one.received == keeper.payload


def test_a_withdrawn_pull_ends_on_both_sides(keeper: Patient, client: BlockingClient, pool: ThreadPoolExecutor) -> None:
    waiter = Waiter(pool, client)
    waits(keeper)
    waiter.withdraw()
    with pytest.raises(ClosedError):
        waiter.header.result(WAIT_SECONDS)
    ended(keeper)
    again = Waiter(pool, client)
    again.withdraw()
    with pytest.raises(ClosedError):
        again.header.result(WAIT_SECONDS)
    assert waiter.received is again.received is None


def test_a_pull_whose_connection_is_cut_waits_again(
    keeper: Patient, server: RunningServer, pool: ThreadPoolExecutor
) -> None:
    with TcpProxy(server.address) as proxy, client_of(proxy.address, keeper) as client:
        waiter = Waiter(pool, client)
        waits(keeper)
        proxy.cut()
        ended(keeper)
        waits(keeper)
        keeper.make()
        waiter.header.result(WAIT_SECONDS)
        assert waiter.received == keeper.payload


@pytest.mark.parametrize(
    ("end", "how"),
    [(lambda server, _: server.stop(), UnavailableError), (lambda _, client: client.close(), ClosedError)],
    ids=["server", "client"],
)
def test_the_end_of_either_process_ends_what_waits(
    keeper: Patient,
    pool: ThreadPoolExecutor,
    end: Callable[[RunningServer, BlockingClient], None],
    how: type[Exception],
) -> None:
    with RunningServer(keeper) as server, client_of(server.address, keeper) as client:
        waiter = Waiter(pool, client)
        waits(keeper)
        end(server, client)
        with pytest.raises(how):
            waiter.header.result(WAIT_SECONDS)
        ended(keeper)


def test_what_waits_leaves_every_connection_to_the_transfers(
    keeper: Patient, server: RunningServer, pool: ThreadPoolExecutor
) -> None:
    waiting = 16
    with client_of(server.address, keeper) as client:
        waiters = [Waiter(pool, client) for _ in range(waiting)]
        waits(keeper, waiting)
        buffer = bytearray(len(keeper.payload))
        request = PullRequest("a/b/0", 1, 7, 3, "epoch")
        client.pull(request, lambda _: memoryview(buffer), deadline_seconds=WAIT_SECONDS)
        assert buffer == keeper.payload
        assert client.push(push_header(4), memoryview(b"1234"), deadline_seconds=WAIT_SECONDS).accepted
        keeper.make()
        for waiter in waiters:
            waiter.header.result(WAIT_SECONDS)
            assert waiter.received == keeper.payload
