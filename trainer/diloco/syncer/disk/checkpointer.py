"""Decides when checkpoints are captured and written: never during a merge, and one at a time; failures are not fatal.

The state is captured on the event loop in an instant (by reference; the store keeps the referenced tensors unchanged)
and written in a thread.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

from diloco.runtime.disk_rate import longest_write_seconds, newest_bytes
from diloco.runtime.files import UnusableFileError
from diloco.spec.status.syncer import CheckpointStatus
from diloco.syncer.disk.checkpoint import CheckpointContent, SavedCheckpoint, write_checkpoint
from diloco.syncer.disk.checkpoint_names import prune_checkpoints
from diloco.syncer.reporting.metrics import SyncerMetrics

_log = logging.getLogger(__name__)

DUE: Final = "a checkpoint is due"
"""The reason of those that are written every few seconds."""
_TELL_SECONDS: Final = 30.0
"""Time between two lines in the log about these; others are all told."""
_WRITTEN: Final = "checkpoint %s written in %.2f s: %s"
_LONGEST_PAUSE_SECONDS: Final = 30.0
LEAST_SECONDS: Final = 120.0
"""Longest wait for the last checkpoint, when the process or the job ends, if it is small."""


class Checkpointer:
    """Writes the checkpoints of one syncer. Owned by the event loop."""

    def __init__(  # noqa: PLR0913  # what a checkpoint is made of, and checked with
        self,
        directory: Path,
        keep: int,
        executor: Executor,
        *,
        capture: Callable[[str], CheckpointContent],
        release: Callable[[], None],
        check: Callable[[CheckpointContent], None],
        metrics: SyncerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to ``directory`` in the threads of ``executor``, keeping so many as `prune_checkpoints` does.

        ``release`` is called when what ``capture`` gave is no longer read. ``check`` is called in the writing thread,
        and raises ``ValueError`` if the captured state cannot be resumed from.
        """
        self._directory = directory
        self._keep = keep
        self._capture = capture
        self._release = release
        self._check = check
        self._metrics = metrics
        self._clock = clock
        self.protected: frozenset[str] = frozenset()
        """Checkpoints that are neither deleted nor counted: those that a recorded tape begins with."""
        self.base: SavedCheckpoint | None = None
        """The newest checkpoint: the next one takes over what has not changed. None: the next one is written whole."""
        self.newest = ""
        """Its name."""
        self._held = frozenset[str]()
        self._executor = executor
        # Of the one that this process begins with: it is at least as old as this.
        self._captured_at = clock()
        self._told_at = -_TELL_SECONDS
        self._failures = self._in_a_row = 0
        self._problem = ""
        self._size_bytes = newest_bytes(directory)
        self._wanted = ""
        self._merging = False
        self._stopping = False
        self._writing: asyncio.Task[None] | None = None

    def begin_with(self, base: SavedCheckpoint) -> None:
        """Go on from the checkpoint that this process begins with."""
        self.base, self.newest = base, base.name

    @property
    def busy(self) -> bool:
        """Whether one is being written or waiting to be written."""
        return self._writing is not None or bool(self._wanted)

    @property
    def longest_seconds(self) -> float:
        """Longest time that the newest checkpoint may take to be written, by its size."""
        return longest_write_seconds(self._size_bytes, LEAST_SECONDS)

    @property
    def pause_seconds(self) -> float:
        """How long to leave a disk alone on which the last ones failed: it may be full, and others write there."""
        return min(2.0**self._in_a_row, _LONGEST_PAUSE_SECONDS) if self._in_a_row else 0.0

    @property
    def status(self) -> CheckpointStatus:
        """For ``/status``. The age is that of the state: since it was captured."""
        age = self._clock() - self._captured_at if self.newest else None
        return CheckpointStatus(newest=self.newest, age_seconds=age, failures=self._failures, problem=self._problem)

    def request(self, reason: str) -> None:
        """Write a checkpoint as soon as no merge is running and the previous one is written."""
        self._wanted = reason
        self._advance()

    def hold(self, name: str) -> None:
        """Keep this checkpoint, beside those that are kept anyway, until another is named; empty: none.

        Call it while not ``busy``, as a write under way may be deleting it.
        """
        self._held = frozenset({name} - {""})

    def merge_begins(self) -> None:
        """Note that momentum is being written, so that nothing is captured."""
        self._merging = True

    def merge_ended(self) -> None:
        """Note that store and engine agree again. Call it before the next merge begins."""
        self._merging = False
        self._advance()

    async def last(self) -> bool:
        """Write the process's last checkpoint; returns whether it is on disk. If not, one line in the log says why."""
        self._stopping = True
        self.request("the syncer stops")
        longest = self.longest_seconds
        try:
            async with asyncio.timeout(longest):
                await self.idle()
        except TimeoutError:
            _log.error("the last checkpoint takes longer than %.0f s; giving up on it", longest)
            return False
        return not self._problem

    async def idle(self) -> None:
        """Wait until nothing is requested or under way. Merges must either continue meanwhile or have ended."""
        while self.busy:
            await (self._writing or asyncio.sleep(0.01))

    def _advance(self) -> None:
        if self._wanted and not self._merging and self._writing is None:
            content = self._capture(self._wanted)
            self._size_bytes = content.image.size_bytes
            self._wanted = ""
            self._writing = asyncio.get_running_loop().create_task(self._write_in_thread(content))

    async def _write_in_thread(self, content: CheckpointContent) -> None:
        captured_at = self._clock()
        try:
            saved = await asyncio.get_running_loop().run_in_executor(self._executor, self._write, content)
            self._finished(saved, captured_at)
        except OSError as error:
            self._failed(error.strerror or str(error), error)
            self._again(content, error)
        except UnusableFileError as error:
            self._failed(str(error), error)
            self._again(content, error)
        except ValueError as error:
            self._failed(f"it could not be read again: {error}", error)
        except Exception as error:  # noqa: BLE001  # any error: training goes on, and the log says so
            _log.exception("writing a checkpoint failed")
            self._failed(repr(error), error)
        finally:
            self._writing = None
            self._release()
        self._advance()

    def _again(self, content: CheckpointContent, error: Exception) -> None:
        """Write the next one whole if it may be the fault of the one before; at once if that is certain."""
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return
        if content.base is not None and isinstance(error, FileNotFoundError | UnusableFileError):
            self._wanted = self._wanted or content.reason
        self.base = None

    def _failed(self, problem: str, error: Exception) -> None:
        self._failures += 1
        self._in_a_row += 1
        self._problem = problem
        if self._stopping:
            _log.error("no last checkpoint: %s; a restart continues from checkpoint %s", error, self.newest)
        else:
            _log.error(
                "cannot write a checkpoint: %s; training continues, and the next checkpoint is tried when it is due",
                error,
            )

    def _write(self, content: CheckpointContent) -> SavedCheckpoint:
        # Unreadable checkpoints would in time replace the readable ones.
        self._check(content)
        # Keep two complete ones at any time, also while the disk is full: the newest may turn out to be damaged.
        self._prune(max(2, self._keep - 1))
        began = self._clock()
        saved = write_checkpoint(self._directory, content)
        seconds = self._clock() - began
        self._metrics.checkpoint_seconds.observe(seconds)
        self._prune(self._keep)
        told = content.reason != DUE or began - self._told_at >= _TELL_SECONDS
        _log.log(logging.INFO if told else logging.DEBUG, _WRITTEN, saved.name, seconds, content.reason)
        if told and content.reason == DUE:
            self._told_at = began
        return saved

    def _prune(self, keep: int) -> None:
        try:
            prune_checkpoints(self._directory, keep, self.protected | self._held)
        except OSError as error:
            _log.warning("old checkpoints could not be deleted: %s", error)

    def _finished(self, saved: SavedCheckpoint, captured_at: float) -> None:
        self.begin_with(saved)
        self._problem, self._in_a_row = "", 0
        self._captured_at = captured_at
