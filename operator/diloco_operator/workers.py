"""A work queue: one run per key at a time, a bounded number in total, and no request is lost.

Level-triggered: a hundred requests for the same key cause one run, and requests that arrive during it cause one more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from diloco.runtime.backoff import Backoff

_log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)
Run = Callable[[Key], Awaitable[float | None]]
"""Seconds until the next run at the latest; None: the key is gone and can be forgotten."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """How often the same key may run."""

    backoff: Backoff
    """After errors."""
    pause_seconds: float = 0.25
    """Least time between two runs of a key, so that a burst of changes causes one run."""
    least_seconds: Callable[[Exception], float] = lambda _: 0.0
    """Least pause after an error, whatever is requested: a busy server says how long to wait."""
    failed: Callable[[Hashable, Exception], None] = lambda _key, _error: None
    """Called for every error with its key."""


@dataclass(slots=True)
class _Entry:
    queued: bool = False
    running: bool = False
    again: bool = False
    failures: int = 0
    not_before: float = 0.0
    due: float | None = None
    timer: asyncio.TimerHandle | None = None


class Workers(Generic[Key]):
    """A queue of keys and its workers. Used from one event loop."""

    def __init__(self, run: Run[Key], pacing: Pacing, concurrency: int) -> None:
        self._run = run
        self._pacing = pacing
        self._concurrency = concurrency
        self._entries: dict[Key, _Entry] = {}
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._running = 0

    @property
    def depth(self) -> int:
        """Keys that are due and wait for a free worker."""
        return self._ready.qsize()

    @property
    def running(self) -> int:
        """Number of runs under way."""
        return self._running

    def enqueue(self, key: Key) -> None:
        """Request a run as soon as possible."""
        entry = self._entries.setdefault(key, _Entry())
        if entry.running:
            entry.again = True
        elif not entry.queued:
            self._plan(key, entry, 0.0)

    async def work(self) -> None:
        """Process the queue forever. When cancelled, cancel the runs under way."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            entry = self._entries[key]
            entry.queued, entry.again, entry.running = False, False, True
            self._running += 1
            try:
                wait_seconds = await self._run(key)
            except Exception as error:  # noqa: BLE001 # whatever a run dies of, the others go on
                self._failed(key, entry, error)
            else:
                self._succeeded(key, entry, wait_seconds)
            finally:
                entry.running = False
                self._running -= 1

    def _succeeded(self, key: Key, entry: _Entry, wait_seconds: float | None) -> None:
        entry.failures = 0
        entry.not_before = self._now() + self._pacing.pause_seconds
        if entry.again:
            self._plan(key, entry, 0.0)
        elif wait_seconds is None:
            del self._entries[key]
        else:
            self._plan(key, entry, self._now() + wait_seconds)

    def _failed(self, key: Key, entry: _Entry, error: Exception) -> None:
        entry.failures += 1
        least_seconds = self._pacing.least_seconds(error)
        wait_seconds = max(self._pacing.backoff.seconds(entry.failures), least_seconds)
        entry.not_before = self._now() + max(self._pacing.pause_seconds, least_seconds)
        self._pacing.failed(key, error)
        _log.debug("%s: attempt %d failed; retrying within %.1f s", key, entry.failures, wait_seconds)
        self._plan(key, entry, 0.0 if entry.again else self._now() + wait_seconds)

    def _plan(self, key: Key, entry: _Entry, at: float) -> None:
        """Schedule a run of the key at loop time `at`, or when its pacing allows, unless an earlier one is planned."""
        at = max(at, entry.not_before)
        if entry.timer is not None:
            if entry.due is not None and entry.due <= at:
                return
            entry.timer.cancel()
            entry.timer = None
        if at <= self._now():
            self._queue(key, entry)
        else:
            entry.due = at
            entry.timer = asyncio.get_running_loop().call_at(at, self._queue, key, entry)

    def _queue(self, key: Key, entry: _Entry) -> None:
        entry.timer, entry.due, entry.queued = None, None, True
        self._ready.put_nowait(key)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
