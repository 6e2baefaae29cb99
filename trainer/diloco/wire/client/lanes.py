"""A learner's event loop for transfers in parts, in a thread of its own, and the connections that they use.

A transfer has a call on each of several connections. On an event loop these are coroutines; in threads they would be
two threads each, for every pull that waits at the syncer.
"""

import asyncio
import concurrent.futures
import contextlib
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import grpc

from diloco.wire.client.route import Target

T = TypeVar("T")

_ANSWERS: Final = 32
"""Answers that count, so that a link that has become longer is noticed (ours)."""

_CLOSING_SECONDS: Final = 5.0

OpenLane = Callable[[int, Target, grpc.ChannelCredentials | None], grpc.aio.Channel]
"""Makes the channel of a number to a target, which has a connection of its own; no credentials: in plain text."""


class Lanes:
    """The connections to one target with one set of certificates, opened when first used. Used on the event loop."""

    def __init__(self, open_lane: Callable[[int], grpc.aio.Channel]) -> None:
        self._open_lane = open_lane
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._answers: deque[float] = deque(maxlen=_ANSWERS)
        self.serving: Counter[int] = Counter()
        """By connection: calls of all transfers that were answered and go on."""
        self._endings: set[asyncio.Task[None]] = set()

    def after(self, ending: Coroutine[Any, Any, None]) -> None:
        """Do what is left to do on a connection after a transfer, which has its result already."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def answered(self, seconds: float) -> None:
        """Note how long the first answer to a call took: a round trip, and whatever kept both sides."""
        self._answers.append(seconds)

    @property
    def answer_seconds(self) -> float:
        """The least of the latest; infinite before the first."""
        return min(self._answers, default=math.inf)

    @property
    def opened(self) -> bool:
        """Whether any was used."""
        return bool(self._channels)

    def channel(self, number: int) -> grpc.aio.Channel:
        """Connection ``number``."""
        if number not in self._channels:
            self._channels[number] = self._open_lane(number)
        return self._channels[number]

    def leave(self, number: int) -> None:
        """Close connection ``number``, as it is silent: its calls go on over a new one. Not while it serves others."""
        if not self.serving[number] and (channel := self._channels.pop(number, None)) is not None:
            self.after(channel.close())

    async def close(self) -> None:
        """Break off all calls, and close the connections."""
        endings = list(self._endings)
        for ending in endings:
            ending.cancel()
        await asyncio.gather(*endings, return_exceptions=True)
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()


class LoopThread:
    """An event loop in a thread, which begins when it is first used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._work: set[asyncio.Task[Any]] = set()

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "concurrent.futures.Future[T]":
        """Begin some work; cancelling what is returned cancels it.

        Raises:
            ValueError: the thread is closed.
        """
        with self._lock:
            if self._closed:
                raise ValueError("the thread is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="transfers", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(self._doing(work), self._loop)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel all work, do this ``last`` and end the thread. Does nothing if it never began, or twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._loop is None or self._thread is None:
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        with contextlib.suppress(concurrent.futures.CancelledError):
            ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _doing(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._work.add(task)
        try:
            return await work()
        finally:
            self._work.discard(task)

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        work = list(self._work)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await last()
        # gRPC's own tasks wait for the ends of calls, which it would otherwise deliver to a closed loop.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        if rest:
            await asyncio.wait(rest, timeout=_CLOSING_SECONDS)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
