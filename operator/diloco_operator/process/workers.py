"""A work queue: one run per key at a time, a bounded number in total, and no request is lost.

Level-triggered: a hundred requests for the same key cause one run, and requests that arrive during it cause one more.
Tenants take turns, and none keeps every worker busy: the runs of one may all wait for a syncer that never answers.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from diloco.runtime.backoff import Backoff
from diloco_operator.shares import is_fair

_log = logging.getLogger(__name__)
_SHORTEST_RETRY: Final = 0.25
"""A request that comes after an error shortens the wait to this fraction at most."""

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

    def __init__(self, run: Run[Key], pacing: Pacing, concurrency: int, tenant_of: Callable[[Key], str]) -> None:
        self._run = run
        self._tenant_of = tenant_of
        self._pacing = pacing
        self._concurrency = concurrency
        self._entries: dict[Key, _Entry] = {}
        self._ready: dict[str, deque[Key]] = {}
        """Keys that are due, by tenant; the tenant whose turn is next comes first."""
        self._running: Counter[str] = Counter()
        """Runs under way, by tenant."""
        self._changed = asyncio.Event()
        """Set when a key is due or a run has ended."""

    @property
    def depth(self) -> int:
        """Keys that are due and wait for a free worker."""
        return sum(map(len, self._ready.values()))

    @property
    def running(self) -> int:
        """Number of runs under way."""
        return self._running.total()

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
            while (key := self._next()) is None:
                self._changed.clear()
                await self._changed.wait()
            entry, tenant = self._entries[key], self._tenant_of(key)
            entry.queued, entry.again, entry.running = False, False, True
            self._running[tenant] += 1
            try:
                wait_seconds = await self._run(key)
            except Exception as error:  # noqa: BLE001 # whatever a run dies of, the others go on
                self._failed(key, entry, error)
            else:
                self._succeeded(key, entry, wait_seconds)
            finally:
                entry.running = False
                self._running[tenant] -= 1
                if not self._running[tenant]:
                    del self._running[tenant]
                self._changed.set()

    def _next(self) -> Key | None:
        """The next key that a free worker may run, which is no longer due; None: there is none."""
        free = self._concurrency - self.running - 1
        for tenant, keys in self._ready.items():
            running = self._running[tenant]
            if not running or is_fair(running + 1, free):
                del self._ready[tenant]
                key = keys.popleft()
                if keys:
                    self._ready[tenant] = keys
                return key
        return None

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
        shortest_seconds = max(self._pacing.pause_seconds, least_seconds, wait_seconds * _SHORTEST_RETRY)
        entry.not_before = self._now() + shortest_seconds
        self._pacing.failed(key, error)
        _log.debug("%s: attempt %d failed; retrying within %.1f s", key, entry.failures, wait_seconds)
        # What was requested meanwhile is often an echo of what this run has written.
        self._plan(key, entry, self._now() + wait_seconds)

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
        self._ready.setdefault(self._tenant_of(key), deque()).append(key)
        self._changed.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
