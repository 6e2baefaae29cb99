"""Writes a learner's checkpoints on a thread of its own; the inner loop only takes the snapshot.

One checkpoint is written at a time. One that is due while the previous is still being written is skipped, so a slow
disk costs checkpoints, not steps or memory.
"""

import logging
import threading
from collections.abc import Callable

from diloco.learner.checkpoint import CheckpointWriteError, LearnerCheckpoint

_log = logging.getLogger(__name__)


class CheckpointWriter:
    """``run`` is the body of one thread."""

    def __init__(self, save: Callable[[LearnerCheckpoint], object]) -> None:
        """``save``: writes one; raises `CheckpointWriteError`."""
        self._save = save
        self._condition = threading.Condition()
        self._next: LearnerCheckpoint | None = None
        self._writing = False
        self._closed = False
        self._failing = False
        self.written_steps: int | None = None
        """Steps of the latest checkpoint that this process has written."""
        self.problem = "the disk was busy"
        """Why the latest checkpoint could not be written."""

    def offer(self, take: Callable[[], LearnerCheckpoint]) -> bool:
        """Take a snapshot and have it written. False: the previous one is still being written, so none was taken."""
        with self._condition:
            if self._writing or self._next is not None:
                return False
        snapshot = take()
        with self._condition:
            self._next = snapshot
            self._condition.notify_all()
        return True

    def finish(self, take: Callable[[], LearnerCheckpoint], timeout_seconds: float) -> None:
        """Start a last checkpoint once the disk is free, waiting at most ``timeout_seconds`` for that."""
        if self._wait_until_idle(timeout_seconds):
            self.offer(take)

    def close(self, timeout_seconds: float) -> bool:
        """End ``run`` once everything is written. False: it was not in that time."""
        idle = self._wait_until_idle(timeout_seconds)
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        return idle

    def _wait_until_idle(self, timeout_seconds: float) -> bool:
        with self._condition:
            return self._condition.wait_for(lambda: not self._writing and self._next is None, timeout_seconds)

    def run(self) -> None:
        """Write until closed."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._next is not None)
                if self._next is None:
                    return
                snapshot, self._next = self._next, None
                self._writing = True
            try:
                self._write(snapshot)
            finally:
                del snapshot
                with self._condition:
                    self._writing = False
                    self._condition.notify_all()

    def _write(self, snapshot: LearnerCheckpoint) -> None:
        try:
            self._save(snapshot)
        except CheckpointWriteError as error:
            # Training goes on: losing a checkpoint costs less than stopping.
            if not self._failing:
                _log.warning("%s; training continues", error)
            self._failing = True
            self.problem = str(error)
            return
        self.written_steps = snapshot.state.steps
        if self._failing:
            self._failing = False
            _log.info("checkpoints can be written again")
        _log.debug("checkpoint after step %d", snapshot.state.steps)
