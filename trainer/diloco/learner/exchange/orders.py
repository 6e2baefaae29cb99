"""What the inner loop checks between two steps, besides fragments: evaluations, progress, the end.

Written by the exchange, by signal handlers and by threads that failed; read by the inner loop. Every slot holds only
the newest value, so memory use is bounded.
"""

import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from diloco.wire.messages import EvaluationWanted, Progress

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Membership:
    """One admission to the job."""

    epoch: str
    """The syncer process's epoch; version numbers are only comparable within one."""
    incarnation: int


class Wakeup:
    """Wakes the inner loop while it waits.

    It counts its notices, so that one given between checking and waiting is not missed.

    Notified by other threads and by signal handlers (its lock is re-entrant); waited for by the inner loop's thread.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.notices = 0
        """The count of notices. Read it before checking, and pass it to ``wait``."""

    def notify(self) -> None:
        """Say that there is something to check."""
        with self._condition:
            self.notices += 1
            self._condition.notify_all()

    def wait(self, since: int, timeout_seconds: float) -> None:
        """Wait until a notice was given after ``since`` was read, or the time is up."""
        until = time.monotonic() + timeout_seconds
        with self._condition:
            while self.notices == since and (rest := until - time.monotonic()) > 0:
                self._condition.wait(rest)


class EndKind(StrEnum):
    """Why the inner loop ends."""

    STOPPED = "Stopped"
    """This process was asked to stop."""
    FINISHED = "Finished"
    REFUSED = "Refused"
    STUCK = "Stuck"
    """The syncer has seen no step for too long: another process is to take this one's place."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and how the inner loop ends."""

    kind: EndKind
    reason: str


@dataclass(frozen=True, slots=True)
class EvaluationOrder:
    """An evaluation, and the admission that requested it."""

    membership: Membership
    wanted: EvaluationWanted


class Orders:
    """The slots."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._lock = threading.Lock()
        self._evaluation: EvaluationOrder | None = None
        self._ending: Ending | None = None
        self.when_stuck: Callable[[Ending], object] = lambda _: None
        """Called when the syncer has found this process stuck."""
        self._failure: BaseException | None = None
        self._stop_reason: str | None = None
        self.progress = 0.0
        """Merged tokens over the budget, 0 to 1, as last received."""
        self._merged_tokens = 0
        self._start_over = ""

    def start_over(self, why: str) -> None:
        """Have the inner loop start over from the global model, with a new optimizer state; ``why``: in a few words."""
        with self._lock:
            self._start_over = why
        self._wakeup.notify()

    def take_start_over(self) -> str:
        """Why the inner loop is to start over now; empty: it is not."""
        with self._lock:
            why, self._start_over = self._start_over, ""
            return why

    def evaluate(self, order: EvaluationOrder) -> None:
        """Request an evaluation; it replaces one that has not begun."""
        with self._lock:
            self._evaluation = order
        self._wakeup.notify()

    def take_evaluation(self) -> EvaluationOrder | None:
        """The evaluation to make now; None: there is none."""
        with self._lock:
            order, self._evaluation = self._evaluation, None
            return order

    def put_back(self, order: EvaluationOrder) -> None:
        """Return an evaluation that cannot be made yet. A newer one takes precedence."""
        with self._lock:
            if self._evaluation is None:
                self._evaluation = order

    def session_over(self) -> None:
        """Drop the requested evaluation: its session is over."""
        with self._lock:
            self._evaluation = None

    def end(self, ending: Ending) -> None:
        """End the inner loop because the syncer said so."""
        with self._lock:
            self._ending = self._ending or ending
        if ending.kind is EndKind.STUCK:
            self.when_stuck(ending)
        self._wakeup.notify()

    def stop(self, reason: str) -> None:
        """Ask this process to stop. Called by signal handlers, so it takes no lock of its own."""
        self._stop_reason = reason
        self._wakeup.notify()

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stop_reason is not None

    def fail(self, failure: BaseException) -> None:
        """Report that a worker thread failed unexpectedly."""
        with self._lock:
            self._failure = self._failure or failure
        self._wakeup.notify()

    def ending(self) -> Ending | None:
        """How the inner loop ends; None: it goes on.

        Raises:
            BaseException: what a worker thread failed with.
        """
        if self._failure is not None:
            raise self._failure
        if self._ending is not None:
            return self._ending
        if self._stop_reason is not None:
            return Ending(EndKind.STOPPED, self._stop_reason)
        return None

    def progressed(self, progress: Progress) -> None:
        """Set the job's progress. The learning rate rises again with a larger budget, and not where tokens are lost."""
        if progress.budget > 0:
            self._merged_tokens = max(self._merged_tokens, progress.tokens)
            self.progress = min(1.0, self._merged_tokens / progress.budget)
