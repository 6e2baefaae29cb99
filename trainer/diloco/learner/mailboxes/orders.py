"""What the inner loop looks at between two steps, besides fragments: evaluations, progress, the end.

Written by the link, by signal handlers and by worker threads that failed; read by the inner loop. Every slot holds the
newest only, so nothing here can pile up.
"""

import threading
from dataclasses import dataclass
from enum import StrEnum

from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.wire.messages import EvaluationWanted, Progress


class EndKind(StrEnum):
    """Why the inner loop ends."""

    STOPPED = "Stopped"
    """This process was asked to stop."""
    FINISHED = "Finished"
    """The job is over."""
    REFUSED = "Refused"
    """The syncer will not have this process."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end, and why."""

    kind: EndKind
    reason: str


@dataclass(frozen=True, slots=True)
class EvaluationOrder:
    """An evaluation, and who wants it."""

    membership: Membership
    wanted: EvaluationWanted


class Orders:
    """The slots."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._lock = threading.Lock()
        self._evaluation: EvaluationOrder | None = None
        self._ending: Ending | None = None
        self._failure: BaseException | None = None
        self._stop_reason: str | None = None
        self._progress = 0.0

    def evaluate(self, order: EvaluationOrder) -> None:
        """An evaluation is wanted; it replaces one that was not begun."""
        with self._lock:
            self._evaluation = order
        self._wakeup.notify()

    def take_evaluation(self) -> EvaluationOrder | None:
        """The evaluation to make now."""
        with self._lock:
            order, self._evaluation = self._evaluation, None
            return order

    def put_back(self, order: EvaluationOrder) -> None:
        """The evaluation cannot be made yet. A newer one goes before it."""
        with self._lock:
            if self._evaluation is None:
                self._evaluation = order

    def session_over(self) -> None:
        """Nobody waits for the evaluation any more."""
        with self._lock:
            self._evaluation = None

    def end(self, ending: Ending) -> None:
        """The syncer ends it."""
        with self._lock:
            self._ending = self._ending or ending
        self._wakeup.notify()

    def stop(self, reason: str) -> None:
        """This process shall stop. Takes no lock of its own: signal handlers call it."""
        self._stop_reason = reason
        self._wakeup.notify()

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stop_reason is not None

    def fail(self, failure: BaseException) -> None:
        """A worker thread ended with an error that is nobody's fault but ours."""
        with self._lock:
            self._failure = self._failure or failure
        self._wakeup.notify()

    def ending(self) -> Ending | None:
        """The end, once there is one.

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
        """The job's progress is known anew. It never goes back, or the learning rate would."""
        if progress.budget > 0:
            self._progress = max(self._progress, min(1.0, progress.tokens / progress.budget))

    @property
    def progress(self) -> float:
        """Merged tokens over the budget, 0 to 1, as last heard."""
        return self._progress
