"""What the workers that push and those that pull have in common."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from diloco.learner.link.transfer_deadlines import TransferDeadlines
from diloco.learner.mailboxes.holdings import Membership
from diloco.runtime.backoff import Backoff, Retries
from diloco.runtime.process.busy import BusyMeter
from diloco.wire.client.transfer_handle import TransferHandle
from diloco.wire.errors import DeadlineError, WireError
from diloco.wire.messages import PullHeader, PullRequest, PushHeader, PushReceipt


class Bulk(Protocol):
    """The wire client's bulk transfers."""

    def push(
        self, header: PushHeader, payload: memoryview, *, deadline_seconds: float, handle: TransferHandle | None
    ) -> PushReceipt:
        """Send an outer gradient."""

    def pull(
        self,
        request: PullRequest,
        allocate: Callable[[PullHeader], memoryview],
        *,
        deadline_seconds: float,
        handle: TransferHandle,
    ) -> PullHeader:
        """Receive a merged fragment; if the request is posted, it may not be there yet."""


@dataclass
class TransferCounts:
    """Transfer counters, for metrics. Workers update each one under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
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
    """Pulls, from when their answers begin. Has a lock of its own."""


def reconnecting(random: Callable[[], float]) -> Backoff:
    """Pauses between attempts to reach the syncer; jittered, as many learners lose it at the same moment.

    Short ones: a learner that looks late pauses at the staleness bound, while the others train with the new syncer.
    """
    return Backoff(first_seconds=0.25, most_seconds=2.0, random=random)


@dataclass(frozen=True)
class TransferContext:
    """What pushes and pulls both need."""

    learner: str
    bulk: Bulk
    current: Callable[[], Membership | None]
    """The current admission; None: there is no session."""
    step_seconds: Callable[[], float]
    """Duration of an inner step, 0 before the first."""
    stopped: threading.Event
    uniform: Callable[[], float]
    """Random numbers in [0, 1)."""
    counts: TransferCounts

    def push(
        self,
        header: PushHeader,
        payload: memoryview,
        deadlines: TransferDeadlines,
        handle: TransferHandle | None = None,
    ) -> PushReceipt | WireError:
        """Push once; the receipt, or why there is none. ``deadlines`` is told how it went."""
        deadline = deadlines.seconds(header.payload_bytes, self.step_seconds())
        began = time.monotonic()
        try:
            receipt = self.bulk.push(header, payload, deadline_seconds=deadline, handle=handle)
        except WireError as error:
            if isinstance(error, DeadlineError):
                deadlines.missed(began, time.monotonic())
            return error
        deadlines.took(header.payload_bytes, time.monotonic() - began)
        return receipt

    def retries(self) -> Retries:
        """Pauses between attempts at one transfer."""
        return Retries(reconnecting(self.uniform))
