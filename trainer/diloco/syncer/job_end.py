"""Ends a job: the last checkpoint and the exported model, then learners are notified, and the process may exit."""

import asyncio
import logging
from collections.abc import Callable

from diloco.core.engine.actions import Finish
from diloco.syncer.backup.backups import Backups
from diloco.syncer.disk.checkpointer import Checkpointer
from diloco.syncer.disk.exporter import RETRY_SECONDS, Exporter
from diloco.wire.messages import Finished

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 3.0
"""With ``exit_when_finished``: time without any session before the process exits."""
_QUIET_AFTER_RESTART_SECONDS = 15.0
"""The same if the job was over before this process began: learners must reconnect to learn that."""
_LINGER_SECONDS = 60.0
"""With ``exit_when_finished``: longest wait for learners to leave once they know that the job is over."""


class JobEnd:
    """The end of one job. Owned by the event loop."""

    at: float | None = None
    """When the job was over, in seconds of ``now``; None: it is not."""

    def __init__(
        self,
        checkpointer: Checkpointer,
        exporter: Exporter,
        backups: Backups | None,
        tell: Callable[[Finished], None],
        now: Callable[[], float],
    ) -> None:
        """``tell`` notifies all learners; ``now`` returns the syncer's time, in seconds."""
        self._checkpointer, self._exporter, self._backups = checkpointer, exporter, backups
        self._tell, self._now = tell, now
        self._told_at, self._quiet_seconds = 0.0, _QUIET_SECONDS
        self._concluding: asyncio.Task[None] | None = None
        self._waiting: list[Callable[[], None]] = []

    def was_before(self, export: Callable[[], str], merged_tokens: int) -> None:
        """Note that the job was over before this process began. ``export`` writes the model."""
        self.at = self._told_at = self._now()
        self._quiet_seconds = _QUIET_AFTER_RESTART_SECONDS
        self._exporter.resume(export, merged_tokens)

    def begin(self, action: Finish, export: Callable[[], str]) -> None:
        """End the job. ``export`` writes the model."""
        self.at = self._now()
        self._concluding = asyncio.create_task(self._conclude(action))
        self._exporter.begin(export)

    def once_on_disk(self, call: Callable[[], None]) -> None:
        """Call it: at once, or when learners are notified if the end is still being written."""
        if self._is_concluding():
            self._waiting.append(call)
        else:
            call()

    def work_left(self) -> bool:
        """Whether something is still being written or uploaded."""
        uploads = self._backups is not None and self._exporter.exported and not self._backups.settled
        return self._checkpointer.busy or self._exporter.busy or self._is_concluding() or uploads

    def may_exit(self, now: float, quiet_since: float, admitted: int) -> bool:
        """Whether learners know, and have left or had their time. ``quiet_since``: when one last had a session."""
        if self.at is None or self.work_left():
            return False
        if now - max(quiet_since, self._told_at) >= self._quiet_seconds:
            return True
        if now - self._told_at >= _LINGER_SECONDS:
            _log.warning("%d learners have not left; no longer waiting for them", admitted)
            return True
        return False

    def back_up(self) -> None:
        """Go on with backups, also after the job's end. Call it about every second."""
        if self._backups is None:
            return
        settled = not self._is_concluding() and not self._checkpointer.busy
        if self.at is not None and self._exporter.exported and settled:
            self._backups.ended()
        self._backups.tick()

    def cancel(self) -> None:
        """End what is under way."""
        self._exporter.cancel()
        if self._backups is not None:
            self._backups.close()
        if self._concluding is not None:
            self._concluding.cancel()

    def _is_concluding(self) -> bool:
        return self._concluding is not None and not self._concluding.done()

    async def _conclude(self, action: Finish) -> None:
        """Write the end to disk before learners are notified of it, because they then leave for good."""
        began = self._now()
        while True:
            failures = self._checkpointer.status.failures
            self._checkpointer.request(f"the job is over: {action.reason}")
            await self._checkpointer.idle()
            took = self._now() - began
            if self._checkpointer.status.failures == failures or took >= self._checkpointer.longest_seconds:
                break
            await asyncio.sleep(RETRY_SECONDS)
        self._told_at = self._now()
        self._tell(Finished(action.complete, action.reason))
        for call in self._waiting:
            call()
        self._waiting.clear()
