"""Writes the job's curves: a row at each thousandth of the token budget, and more at the start.

So a plot has points soon, and the file stays small.

A syncer that restarts goes on with the file; what it merges again, it writes again, with its own epoch.
"""

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from diloco.core.engine.actions import Action, AskFragment, Broadcast, Merge
from diloco.runtime.files import UnusableFileError, write_atomically
from diloco.spec.status.curves import CurveRow, FragmentCurve, LearnerCurve, MergeCurve
from diloco.spec.status.engine import EngineStatus
from diloco.spec.status.syncer import SyncerStatus, read_status
from diloco.wire.messages import StepReport

_log = logging.getLogger(__name__)

ROWS: Final = 1000
"""Rows of a whole job (ours): as many as a plot has pixels for."""
_GROWTH: Final = 1 / 50
"""Tokens by which the next row comes, as a share of those before, while that is less (ours): some 500 rows more."""
MOST_LEARNERS: Final = 64
"""Most learners of a job whose curves are written one by one (ours)."""

MOST_FRAGMENTS: Final = 256
"""Fragments whose curves are written (ours): the first ones."""


@dataclass(slots=True)
class _Round:
    version: int
    opened: float
    asked: set[str] = field(default_factory=set)
    order: Merge | None = None


class Curves:
    """The latest values of each learner and fragment, and the rows made of them. Owned by the event loop."""

    def __init__(self) -> None:
        self._reports: dict[str, StepReport] = {}
        self._due, self._ended = 1.0, False
        self.fragments: dict[int, FragmentCurve] = {}
        self._rounds: dict[int, _Round] = {}
        """By fragment."""
        self.merge: MergeCurve | None = None
        """The latest one; None: nothing was merged yet."""

    def reported(self, learner: str, report: StepReport) -> None:
        """Keep a learner's latest step."""
        self._reports[learner] = report

    def observe(self, action: Action, now: float) -> None:
        """Follow a round from its first request to the merged fragment."""
        if isinstance(action, AskFragment):
            found = self._rounds.get(action.fragment)
            if found is None or found.version != action.version:
                found = self._rounds[action.fragment] = _Round(action.version, now)
            found.asked.add(action.learner)
        elif isinstance(action, Merge) and action.members and action.fragment in self._rounds:
            self._rounds[action.fragment].order = action
        elif isinstance(action, Broadcast):
            over = self._rounds.pop(action.fragment, None)
            if over is not None and over.order is not None:
                self.merge = MergeCurve(
                    fragment=action.fragment,
                    version=action.version,
                    members=len(over.order.members),
                    asked=len(over.asked),
                    waited_seconds=now - over.opened,
                    versions_behind=max(action.version - 1 - member.base_version for member in over.order.members),
                )

    def due(self, view: EngineStatus) -> bool:
        """Whether the job has advanced by a row since the last one, or has just ended."""
        return view.merged_tokens >= self._due or (view.finished and not self._ended)

    def row(self, status: SyncerStatus) -> CurveRow:
        """The next row."""
        tokens = status.merged_tokens
        self._due, self._ended = tokens + min(status.budget_tokens / ROWS, _GROWTH * tokens), status.finished
        known = status.learners if len(status.learners) <= MOST_LEARNERS else ()
        return CurveRow(
            epoch=status.epoch,
            unix_seconds=time.time(),
            merged_tokens=status.merged_tokens,
            inner_steps=status.inner_steps,
            tokens_per_second=status.tokens_per_second,
            eval_loss=status.eval_loss,
            learners={
                learner.id: LearnerCurve(
                    steps=learner.steps,
                    tokens_per_second=learner.tokens_per_second,
                    loss=learner.loss,
                    gradient_norm=report.gradient_norm if math.isfinite(report.gradient_norm) else None,
                    learning_rate=report.learning_rate,
                )
                for learner in known
                if (report := self._reports.get(learner.id)) is not None
            },
            fragments=dict(sorted(self.fragments.items())[:MOST_FRAGMENTS]),
            merge=self.merge,
            time_seconds=status.time_seconds,
            bytes_by_region=status.bytes_by_region,
        )


class CurveFiles:
    """Appends rows, and keeps the latest status beside them. What the disk does not take is left out.

    Called in one thread, which may wait for the disk.
    """

    def __init__(self, rows: Path, status: Path) -> None:
        self._rows, self._status = rows, status
        self._failed: set[Path] = set()

    def append(self, row: CurveRow) -> None:
        """Write a row."""
        self._attempt(self._rows, partial(self._write, row.model_dump_json().encode() + b"\n"))

    def keep(self, status: SyncerStatus) -> None:
        """Write a status over the one before.

        A process that begins after the end has measured nothing: it leaves the status of the process that saw the end.
        """
        if not (status.finished and self._has_end_of(status)):
            self._attempt(
                self._status, partial(write_atomically, self._status, status.model_dump_json(), durable=False)
            )

    def _has_end_of(self, status: SyncerStatus) -> bool:
        """Whether an earlier process has left its status of the same end."""
        try:
            before = read_status(self._status)
        except UnusableFileError:
            return False
        same = (before.phase, before.merged_tokens) == (status.phase, status.merged_tokens)
        return same and before.epoch < status.epoch

    def _attempt(self, path: Path, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if path not in self._failed:
                _log.warning("%s: cannot be written (%s); trying again", path, error.strerror or error)
            self._failed.add(path)
        else:
            self._failed.discard(path)

    def _write(self, line: bytes) -> None:
        descriptor = os.open(self._rows, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            end = os.fstat(descriptor).st_size
            if end and os.pread(descriptor, 1, end - 1) != b"\n":  # a crash has cut the last row
                line = b"\n" + line
            if os.write(descriptor, line) < len(line):  # the disk is full
                os.ftruncate(descriptor, end)
        finally:
            os.close(descriptor)
