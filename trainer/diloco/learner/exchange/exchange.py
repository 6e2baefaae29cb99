"""The event loop of a learner's exchange with the syncer, in a thread of its own.

Session, pushes, pulls and posted pulls are its tasks. A few threads beside it encode and decode, which takes long. The
training thread hands over through the outbox, and finds what arrives in the holdings.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from diloco.learner.exchange.link import Link, LinkOptions, Position, Shared
from diloco.learner.exchange.orders import Membership
from diloco.learner.exchange.pulls import Pulls, ReceiveOptions
from diloco.learner.exchange.pushes import PushEncoding, Pushes
from diloco.learner.exchange.transfers import Tasks, TransferContext, TransferCounts
from diloco.learner.training.devices.torch_threads import start_worker
from diloco.wire.client.client import ClientOptions, SyncClient, await_ends_of_calls
from diloco.wire.messages import Join

T = TypeVar("T")

_CODING_THREADS: Final = 2
_JOIN_SECONDS: Final = 5.0
_CLOSING_SECONDS: Final = 2.0


@dataclass(frozen=True)
class ExchangeOptions:
    """What is exchanged, and with whom."""

    who: Join
    """What every Join says alike."""
    client: ClientOptions
    encoding: PushEncoding
    receiving: ReceiveOptions
    position: Callable[[], Position]
    """Called before each Join."""
    step_seconds: Callable[[], float]
    """Duration of an inner step, 0 before the first."""
    uniform: Callable[[], float]
    """Random numbers in [0, 1)."""


class Exchange:
    """Built, started and closed once, by the training thread."""

    def __init__(self, options: ExchangeOptions, shared: Shared, counts: TransferCounts) -> None:
        """Nothing is connected, and no thread runs yet.

        Raises:
            TlsFileError: a certificate cannot be read.
        """
        self._options = options
        self._client = client = SyncClient(options.client)
        self._shared = shared
        self._pool = ThreadPoolExecutor(_CODING_THREADS, "coding", torch.set_num_threads, (1,))
        self._tasks = tasks = Tasks(shared.orders.fail)
        who, uniform = options.who, options.uniform
        context = TransferContext(who.learner, client, options.step_seconds, uniform, counts, tasks, self._compute)
        pulls = Pulls(context, shared.holdings, options.receiving)
        self._pushes = pushes = Pushes(context, shared.outbox, options.encoding, pulls.post)
        shared.outbox.push = pushes.offer
        link = LinkOptions(who, options.position, uniform, self._why_unreachable)
        self.link = Link(link, client, shared, (pushes, pulls), tasks)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()
        self._linked: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Join."""
        self._loop = asyncio.new_event_loop()
        self._shared.outbox.wake = self._wake
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="exchange", daemon=True)
        self._thread.start()

    def pending(self) -> tuple[int, ...]:
        """Fragments whose outer gradients are not sent yet."""
        return self._result(self._pending(), 0.0) or ()

    @property
    def push_bytes_per_second(self) -> float | None:
        """Rate of the pushes so far; None before the first measurement."""
        return self._pushes.bytes_per_second

    def hand_in(self, seconds: float) -> bool:
        """Wait until all that was requested is sent or given up. False: it was not in that time."""
        return self._result(self._handed_in(seconds), seconds) or False

    def leave(self, membership: Membership, reason: str, seconds: float) -> bool:
        """Tell the syncer that the learner leaves, and do not join again. False: it could not in that time."""
        self._shared.outbox.leave(membership, reason)
        return self._result(self._told(seconds), seconds) or False

    def goes_on(self) -> bool:
        """Whether a job that was over goes on: see `Link`. Called once all else is closed."""

        async def asked() -> bool:
            async with SyncClient(self._options.client) as client:
                return await self.link.goes_on(client)

        return asyncio.run(asked())

    def close(self) -> None:
        """End session and transfers, and close every connection. May be called more than once."""
        if self._loop is not None and self._thread is not None:
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_JOIN_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _wake(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has failed, as the training thread will see
            self._loop.call_soon_threadsafe(self._shared.outbox.deliver)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        torch.set_num_threads(1)  # more would take cores from the inner step
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._until_closed())
        except BaseException as error:  # noqa: BLE001  # the inner loop raises it, which ends the process
            self._shared.orders.fail(error)

    async def _until_closed(self) -> None:
        self._linked = self._tasks.start(self.link.run())
        self._shared.outbox.deliver()
        await self._closing.wait()
        await self._tasks.cancel()
        await self._client.close()
        await await_ends_of_calls(_CLOSING_SECONDS)

    def _compute(self, function: Callable[..., T], *arguments: Any) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def _why_unreachable(self) -> "asyncio.Future[str | None]":
        # Not in the pool, for whose threads the interpreter waits at its end: a name server may take half a minute.
        found: Future[str | None] = Future()
        found.set_running_or_notify_cancel()
        start_worker("diagnosis", lambda: found.set_result(self._client.why_unreachable()), found.set_exception)
        return asyncio.wrap_future(found)

    async def _pending(self) -> tuple[int, ...]:
        self._shared.outbox.deliver()
        return self._pushes.pending()

    async def _handed_in(self, seconds: float) -> bool:
        if await self._pending():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._pushes.until_idle()
        return not self._pushes.pending()

    async def _told(self, seconds: float) -> bool:
        # The syncer ends the session on a Leave. Joining again while the last checkpoint is written would undo it.
        self.link.stop_rejoining()
        self._shared.outbox.deliver()
        told = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                told = await self._shared.outbox.flush()
        if told and self._linked is not None:
            # To break the session off now could overtake what was sent: gRPC then drops it at the other end.
            await asyncio.wait([self._linked], timeout=_CLOSING_SECONDS)
        return told

    def _result(self, work: Coroutine[Any, Any, T], seconds: float) -> T | None:
        """What the loop returns, which takes ``seconds``; None: it does not, as it hangs or has failed."""
        if self._loop is None or self._thread is None or not self._thread.is_alive():
            work.close()
            return None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds + _JOIN_SECONDS)
        except TimeoutError:
            future.cancel()
            return None
