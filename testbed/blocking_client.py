"""A learner's client for callers that are threads: each call runs on an event loop in a thread of the client's own."""

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Self, TypeVar

from diloco.wire.client.client import ClientOptions, SyncClient, await_ends_of_calls
from diloco.wire.client.session import Session
from diloco.wire.errors import UnavailableError, WireError
from diloco.wire.messages import (
    Join,
    LearnerMessage,
    PullHeader,
    PullRequest,
    PushHeader,
    PushReceipt,
    SyncerMessage,
    Welcome,
)

T = TypeVar("T")

_CLOSING_SECONDS: Final = 5.0


class ClosedError(RuntimeError):
    """The client was closed, or the call withdrawn."""


class BlockingClient:
    """`SyncClient` for threads. Its thread begins when it is first used."""

    def __init__(self, options: ClientOptions) -> None:
        """See `SyncClient`."""
        self.client = SyncClient(options)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def open_session(self, join: Join) -> "BlockingSession":
        """Begin a session. Returns at once: if the syncer cannot be reached, reading the session raises."""
        return BlockingSession(self, join)

    def push(self, header: PushHeader, payload: memoryview, *, deadline_seconds: float) -> PushReceipt:
        """See `SyncClient`."""
        return self.wait_for(self.start(lambda: self.client.push(header, payload, deadline_seconds=deadline_seconds)))

    def pull(
        self, request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
    ) -> PullHeader:
        """See `SyncClient`."""
        return self.wait_for(self.start_pull(request, allocate, deadline_seconds=deadline_seconds))

    def start_pull(
        self, request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
    ) -> "concurrent.futures.Future[PullHeader]":
        """Begin it; cancelling what is returned withdraws it."""
        return self.start(lambda: self.client.pull(request, allocate, deadline_seconds=deadline_seconds))

    def why_unreachable(self) -> str | None:
        """See `SyncClient`."""
        return self.client.why_unreachable()

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "concurrent.futures.Future[T]":
        """Begin some work on the loop.

        Raises:
            ClosedError: the client is closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="client", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def wait_for(self, future: "concurrent.futures.Future[T]") -> T:
        """Its result.

        Raises:
            ClosedError: it was cancelled.
        """
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClosedError("the client is closed" if self._closed else "the transfer was withdrawn") from None

    def close(self) -> None:
        """Cancel all calls, and close every connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_CLOSING_SECONDS)
        await self.client.close()
        await await_ends_of_calls(_CLOSING_SECONDS)


class BlockingSession:
    """A session for threads: send from any, iterate from one."""

    def __init__(self, client: BlockingClient, join: Join) -> None:
        self._client = client
        self._messages: queue.Queue[SyncerMessage | Exception | None] = queue.Queue()
        self._outgoing: asyncio.Queue[LearnerMessage | None] = asyncio.Queue()
        self._over = threading.Event()
        self._closing = False
        self._task = client.start(lambda: self._run(join))

    def send(self, message: LearnerMessage) -> None:
        """Queue a message; returns at once.

        Raises:
            UnavailableError: the session is over.
        """
        if self._over.is_set() or self._closing:
            raise UnavailableError("the session is over")
        self._client.start(lambda: self._outgoing.put(message))

    def __iter__(self) -> Iterator[SyncerMessage]:
        """The syncer's messages, in the order sent.

        Raises:
            WireError: the session broke, or was ended with an error by either side.
        """
        while (message := self._messages.get()) is not None:
            if isinstance(message, Exception):
                self._messages.put(None)
                raise message
            yield message

    def close(self, grace_seconds: float = 2.0) -> None:
        """Send what is queued and hang up; break it off if the syncer has not ended it in ``grace_seconds``."""
        self._closing = True
        with contextlib.suppress(ClosedError):
            self._client.start(lambda: self._outgoing.put(None))
        if grace_seconds > 0:
            self._over.wait(grace_seconds)
        self._task.cancel()
        self._over.wait(_CLOSING_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _run(self, join: Join) -> None:
        end: Exception | None = None
        try:
            session = await self._client.client.open_session(join)
            sending = asyncio.create_task(self._send(session))
            try:
                while (message := await session.receive()) is not None:
                    if isinstance(message, Welcome):
                        self._client.client.note_terms(message)
                    self._messages.put(message)
            finally:
                sending.cancel()
                await session.close(0.0)
        except WireError as error:
            end = None if self._closing else error
        except asyncio.CancelledError:
            end = None if self._closing else ClosedError("the client is closed")
        finally:
            self._over.set()
            self._messages.put(end)

    async def _send(self, session: Session) -> None:
        with contextlib.suppress(WireError):  # it is over, as its reader will see
            while (message := await self._outgoing.get()) is not None:
                await session.send(message)
            await session.hang_up()
