"""What pushes and pulls have in common: deadlines, counters, and their tasks."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from diloco.runtime.backoff import Backoff, Retries
from diloco.runtime.process.busy import BusyMeter
from diloco.wire.messages import PullHeader, PullRequest, PushHeader, PushReceipt

T = TypeVar("T")
Place = TypeVar("Place")
What = TypeVar("What")

FLOOR_SECONDS: Final = 20.0
"""Least deadline (ours): a small fragment's time is mostly latency and the other side's work."""
LIMIT_SECONDS: Final = 3600.0
_ROOM: Final = 8.0
"""A deadline is this many times the expected duration."""
_FLOOR_STEPS: Final = 10.0
"""Least deadline in inner steps: a delay of so few steps does not matter to a learner that is this slow."""
_FIRST_RATE: Final = 1 << 20
"""Bytes per second assumed before the first measurement."""
_LEAST_RATE: Final = 1 << 10
_NEWEST: Final = 0.3
"""Weight of the newest measurement in the moving average."""
_MEASURABLE_BYTES: Final = 1 << 16
"""Smaller transfers measure no rate: the link has at least theirs."""


class TransferDeadlines:
    """How long transfers of one direction may take, from the rate of earlier ones.

    A fixed deadline would be too short for a slow link or a large model, and on a fast link so long that a dead
    connection is noticed late. This one follows the measured rate, with a margin, and grows after each missed deadline,
    so that a fragment still gets through on a link that has become ten times slower.
    """

    def __init__(self) -> None:
        self._rate = float(_FIRST_RATE)
        self._measured = False
        self._missed_at = -math.inf

    def seconds(self, transfer_bytes: int, step_seconds: float) -> float:
        """Deadline for a transfer, given the duration of an inner step."""
        expected = transfer_bytes / self._rate
        return min(LIMIT_SECONDS, max(FLOOR_SECONDS, _FLOOR_STEPS * step_seconds) + _ROOM * expected)

    def took(self, transfer_bytes: int, seconds: float) -> None:
        """Note that a transfer succeeded, and how long it took."""
        rate = transfer_bytes / max(seconds, 1e-6)
        if transfer_bytes < _MEASURABLE_BYTES:
            self._rate = max(self._rate, rate)
            return
        self._rate = rate if not self._measured else (1 - _NEWEST) * self._rate + _NEWEST * rate
        self._measured = True

    def missed(self, began: float, now: float) -> None:
        """Note that a transfer that ``began`` then missed its deadline, in seconds of a clock.

        All that are under way while the process is frozen or its link cut miss theirs together, which counts once.
        """
        if began >= self._missed_at:
            self._rate, self._missed_at = max(_LEAST_RATE, self._rate / 2), now

    @property
    def bytes_per_second(self) -> float | None:
        """The moving average; None before the first measurement."""
        return self._rate if self._measured else None


class Bulk(Protocol):
    """The wire client's bulk transfers."""

    async def push(self, header: PushHeader, payload: memoryview, *, deadline_seconds: float) -> PushReceipt:
        """Send an outer gradient."""

    async def pull(
        self, request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
    ) -> PullHeader:
        """Receive a merged fragment; if the request is posted, it may not be there yet."""


@dataclass
class TransferCounts:
    """Transfer counters, for metrics. Written on the loop, read by any thread."""

    bytes_pushed: int = 0
    bytes_pulled: int = 0
    pushes: int = 0
    pulls: int = 0
    pushes_refused: int = 0
    retries: int = 0
    updates: int = 0
    """Number of pulls that received an update."""
    updates_wrong: int = 0
    """Number of updates that did not give the syncer's values; the fragment was then pulled whole."""
    refused: int = 0
    """Number of pulls whose values cannot be trained on."""
    posted: int = 0
    """Number of pulls that had waited at the syncer."""
    received: BusyMeter = field(default_factory=lambda: BusyMeter(time.monotonic))
    """Pulls, from when their answers begin."""


class Tasks:
    """Tasks of the loop. One that fails in a way that nobody expects ends the learner, as a thread's failure does."""

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Begin some work."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel all, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


class UnderWay(Generic[Place, What]):
    """Transfers of one session, at most one in each place."""

    def __init__(self, tasks: Tasks, ended: Callable[[], object]) -> None:
        """``ended`` is called when one has ended by itself."""
        self._tasks, self._ended = tasks, ended
        self._transfers: dict[Place, tuple[What, asyncio.Task[None]]] = {}

    @property
    def places(self) -> tuple[Place, ...]:
        """Those that are taken."""
        return tuple(self._transfers)

    def get(self, place: Place) -> What | None:
        """What is transferred there; None: nothing."""
        what, _ = self._transfers.get(place, (None, None))
        return what

    def start(self, place: Place, what: What, transfer: Callable[[What], Coroutine[Any, Any, object]]) -> None:
        """Begin a transfer in a place that is not taken."""

        async def run() -> None:
            await transfer(what)
            _, task = self._transfers.get(place, (None, None))
            if task is asyncio.current_task():  # the session is not over
                del self._transfers[place]
                self._ended()

        self._transfers[place] = what, self._tasks.start(run())

    def cancel(self) -> None:
        """End all: their session is over."""
        for _, task in self._transfers.values():
            task.cancel()
        self._transfers.clear()


def reconnecting(random: Callable[[], float]) -> Backoff:
    """Pauses between attempts to reach the syncer; jittered, as many learners lose it at the same moment.

    Short ones: a learner that looks late pauses at the staleness bound, while the others train with the new syncer.
    """
    return Backoff(first_seconds=0.25, most_seconds=2.0, random=random)


class Computing(Protocol):
    """Runs a function where it keeps neither the loop nor the training thread from their work."""

    def __call__(self, function: Callable[..., T], *arguments: Any) -> Awaitable[T]:
        """Its result."""


@dataclass(frozen=True)
class TransferContext:
    """What pushes and pulls both need."""

    learner: str
    bulk: Bulk
    step_seconds: Callable[[], float]
    """Duration of an inner step, 0 before the first."""
    uniform: Callable[[], float]
    """Random numbers in [0, 1)."""
    counts: TransferCounts
    tasks: Tasks
    compute: Computing

    def retries(self) -> Retries:
        """Pauses between attempts at one transfer."""
        return Retries(reconnecting(self.uniform))
