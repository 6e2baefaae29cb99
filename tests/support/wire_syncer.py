"""A minimal syncer behind a real server, for tests of the wire: it keeps what it receives, and sends what it has."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import cache
from typing import Any, Self, TypeVar

from diloco.wire.errors import RefusedError
from diloco.wire.messages import (
    FragmentWanted,
    Join,
    LearnerMessage,
    Leave,
    Progress,
    PullHeader,
    PullRequest,
    PushHeader,
    PushReceipt,
    Welcome,
)
from diloco.wire.part_messages import payload_digest
from diloco.wire.server.handler import Send, SyncHandler
from diloco.wire.server.server import ServerOptions, SyncServer
from diloco.wire.server.traffic import Traffic
from diloco.wire.tls.tls import Peer

T = TypeVar("T")

PAYLOAD_LIMIT_BYTES = 64 << 20


class Keeper:
    """A ``SyncHandler`` that welcomes every learner, answers each step with a request, and keeps every push."""

    def __init__(self, fragments: dict[int, bytes] | None = None) -> None:
        self.fragments = fragments or {}
        self.said: list[LearnerMessage] = []
        self.peers: list[Peer] = []
        self.asked: list[PullRequest] = []
        self.pushes: list[tuple[PushHeader, bytes]] = []
        self.failed: list[tuple[PushHeader, str]] = []
        self.accepted = threading.Event()
        self.push_ended = threading.Event()
        self.joined = threading.Event()
        self.session_ended = threading.Event()
        self.says_digests = False
        """Headers of pulls have the digest of the payload, as the syncer's do."""
        self.holds_pulls = False
        """No pull is answered."""
        self.pull_waits = threading.Event()
        self.pull_cancelled = threading.Event()
        self.connections = 1
        """Most that a transfer is spread over."""
        self.refuse_pushes = ""
        self.unwanted: str | None = None
        """Why a push that comes in is of no use any more."""
        self.abandon: Callable[[], None] = lambda: None
        """Ends the push accepted last, which is no longer wanted."""
        self.chatter = 0
        self.answer_pushes = threading.Event()
        self.answer_pushes.set()
        self._buffers: dict[tuple[str, int], bytearray] = {}

    @property
    def buffers_in_use(self) -> int:
        """Buffers handed out for pushes that have neither arrived nor failed."""
        return len(self._buffers)

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        self.peers.append(peer)
        self.said.append(join)
        progress = Progress(0, 1, 0)
        send(Welcome(1, "epoch", (), (), join.steps, join.data_position, progress, connections=self.connections))
        self.joined.set()
        try:
            for number in range(self.chatter):
                send(FragmentWanted(0, number, 1))
            async for message in inbound:
                self.said.append(message)
                if isinstance(message, Leave):
                    return
                send(FragmentWanted(0, len(self.said), 1))
        finally:
            self.session_ended.set()

    def accept_push(self, header: PushHeader, peer: Peer, abandon: Callable[[], None]) -> memoryview:
        self.abandon = abandon
        self.peers.append(peer)
        if self.refuse_pushes:
            raise RefusedError(self.refuse_pushes)
        if self.unwanted and self.accepted.is_set():  # once it is no longer wanted, calls that come late begin nothing
            raise RefusedError(self.unwanted)
        if header.payload_bytes > PAYLOAD_LIMIT_BYTES:
            raise RefusedError(f"{header.payload_bytes} bytes were not asked for")
        self._buffers[header.learner, header.fragment] = buffer = bytearray(header.payload_bytes)
        self.accepted.set()
        return memoryview(buffer)

    def push_unwanted(self, header: PushHeader) -> str | None:
        del header
        return self.unwanted

    async def pushed(self, header: PushHeader) -> PushReceipt:
        await asyncio.to_thread(self.answer_pushes.wait)
        self.pushes.append((header, bytes(self._buffers.pop((header.learner, header.fragment)))))
        self.push_ended.set()
        return PushReceipt(accepted=True)

    def push_failed(self, header: PushHeader, reason: str) -> None:
        del self._buffers[header.learner, header.fragment]
        self.failed.append((header, reason))
        self.push_ended.set()

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        self.peers.append(peer)
        self.asked.append(request)
        if self.holds_pulls:
            self.pull_waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.pull_cancelled.set()
        if request.fragment not in self.fragments:
            raise RefusedError(f"no fragment {request.fragment}")
        content = self.fragments[request.fragment]
        digest = payload_digest(memoryview(content)) if self.says_digests else b""
        return PullHeader(request.fragment, request.minimum_version, len(content), digest), memoryview(content)


class _SharedLoop:
    """One event loop in a thread for all servers of the process.

    grpc.aio has one completion queue for all loops of a process, so any loop may be handed the events of any other.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        """What asyncio would have logged: unhandled exceptions."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._complain(context))
        threading.Thread(target=self._loop.run_forever, name="wire-servers", daemon=True).start()

    def _complain(self, context: dict[str, Any]) -> None:
        if str(context.get("exception")) == "Event loop is closed" and "PollerCompletionQueue" in context["message"]:
            return  # an event of a client, whose loop is a learner's own and ended before this one was handed it
        self.complaints.append(str(context))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call_soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)


@cache
def _shared_loop() -> _SharedLoop:
    return _SharedLoop()


class RunningServer:
    """A server on an event loop in another thread, within a ``with``."""

    def __init__(self, handler: SyncHandler, options: ServerOptions | None = None) -> None:
        self.traffic = Traffic(("a",))
        self.server = SyncServer(handler, options or ServerOptions("127.0.0.1:0"), self.traffic)
        self.address = ""
        self._loop = _shared_loop()
        self._complaints_before = len(self._loop.complaints)

    @property
    def loop_complaints(self) -> list[str]:
        """Exceptions of the event loop that were not handled since this server was created."""
        return self._loop.complaints[self._complaints_before :]

    def __enter__(self) -> Self:
        self.address = f"127.0.0.1:{self._loop.run(self.server.start())}"
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call it on the server's event loop."""
        self._loop.call_soon(call)

    def stop(self) -> None:
        """End every call and serve no more."""
        self._loop.run(self.server.stop(0))
