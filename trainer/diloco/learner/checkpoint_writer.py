"""Writes a learner's checkpoints on a thread of its own; the inner loop only takes the snapshot.

One checkpoint is written at a time. One that is due while the previous is still being written is skipped, so a slow
disk costs checkpoints, not steps or memory.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from diloco.learner.checkpoint import CheckpointWriteError, LearnerCheckpoint
from diloco.learner.training.devices.host_copies import whole_copies
from diloco.runtime.disk_rate import longest_write_seconds

LEAST_SECONDS: Final = 60.0
"""Longest wait for the disk at the end if the checkpoint is small."""
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
        self._size_bytes = 0
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
            self._size_bytes = snapshot.size_bytes
            self._condition.notify_all()
        return True

    def longest_seconds(self) -> float:
        """Longest time that the newest snapshot may take to be written, by its size."""
        return longest_write_seconds(self._size_bytes, LEAST_SECONDS)

    def finish(self, take: Callable[[], LearnerCheckpoint], timeout_seconds: float) -> bool:
        """Start a last checkpoint once the disk is free, waiting at most ``timeout_seconds``. False: it was not."""
        return self._wait_until_idle(timeout_seconds) and self.offer(take)

    def close(self) -> bool:
        """End ``run`` once all is written. False: it was not in ``longest_seconds``; only the first call waits."""
        idle = self._wait_until_idle(0.0 if self._closed else self.longest_seconds())
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
        whole_copies(snapshot.state.tensors)
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
