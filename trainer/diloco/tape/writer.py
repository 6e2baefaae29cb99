"""Writes the tape of one epoch, and continues after the disk was full.

Lines are passed to the system with every batch of events, so a killed process loses none that it acted on. They are not
forced to disk: a tape explains a run, but only a checkpoint is needed to resume it. While the disk is full, lines wait
in memory, up to a limit; beyond it the tape ends there, and a message says so.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from diloco.core.actions import Action
from diloco.core.events import Event
from diloco.tape.reader import TapeHeader, find_tapes, header_line, seal, segment_path
from diloco.tape.records import to_plain

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TapeLimits:
    """Sizes that bound the tape."""

    segment_bytes: int = 64 << 20
    """When a segment exceeds this, it is closed and the next one begun."""
    kept_bytes: int | None = 1 << 30
    """All segments of all epochs; the oldest closed ones are deleted first. None: all are kept (``--record``)."""
    waiting_bytes: int = 32 << 20
    """Lines kept in memory while they cannot be written."""


class TapeWriter:
    """The tape of one epoch. Owned by the event loop: not for several threads."""

    def __init__(self, directory: Path, header: TapeHeader, limits: TapeLimits) -> None:
        """Begin the tape. A full disk is no error: the lines wait.

        Raises:
            OSError: ``directory`` cannot be created.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._epoch, self._limits = directory, header.epoch, limits
        self._segment = 0
        self._descriptor: int | None = None
        self._written = 0
        self._waiting = bytearray()
        self._seq = 0
        self.ended = False
        """Whether the tape was given up because it could not be written for too long."""
        self.failing = ""
        """Why lines are waiting now; empty if none are."""
        line, self._chain = header_line(header)
        self._waiting += line
        self.flush()

    @property
    def problem(self) -> str:
        """Why the tape is incomplete or waits for the disk; empty if it does not."""
        if self.ended:
            return f"the tape ended at line {self._seq}: {self.failing}"
        return f"the tape waits for the disk: {self.failing}" if self.failing else ""

    @property
    def seq(self) -> int:
        """Number of the last line appended."""
        return self._seq

    def append(self, now: float, event: Event, actions: list[Action]) -> None:
        """Add one event and its actions; ``flush`` passes them to the system."""
        if self.ended:
            return
        self._seq += 1
        body = {
            "seq": self._seq,
            "now": now,
            "event": to_plain(event),
            "actions": [to_plain(action) for action in actions],
        }
        line, self._chain = seal(body, self._chain)
        self._waiting += line

    def flush(self) -> None:
        """Pass the added lines to the system. Never raises: a failure is in ``failing`` and in the log."""
        if self.ended or not self._waiting:
            return
        try:
            self._write()
        except OSError as error:
            if not self.failing:
                _log.error("cannot write the tape; its lines are kept in memory: %s", error)
            self.failing = error.strerror or str(error)
            if len(self._waiting) > self._limits.waiting_bytes:
                self._give_up()
            return
        if self.failing:
            _log.info("the tape can be written again; no line was lost")
            self.failing = ""
        if self._written > self._limits.segment_bytes:
            self._rotate()

    def close(self) -> None:
        """Write what waits and close the file."""
        self.flush()
        self._close_segment()

    def _write(self) -> None:
        if self._descriptor is None:
            path = segment_path(self._directory, self._epoch, self._segment)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            self._written = 0
        # After a short write, what was written is removed from the front, so the next write continues there.
        while self._waiting:
            with memoryview(self._waiting) as waiting:
                taken = os.write(self._descriptor, waiting)
            self._written += taken
            del self._waiting[:taken]

    def _give_up(self) -> None:
        _log.error("the tape ends at seq %d: it could not be written for too long (%s)", self._seq, self.failing)
        self.ended = True
        self._waiting.clear()
        self._close_segment()

    def _rotate(self) -> None:
        self._close_segment()
        self._segment += 1
        if self._limits.kept_bytes is not None:
            self._drop_oldest(self._limits.kept_bytes)

    def _drop_oldest(self, kept_bytes: int) -> None:
        segments = [path for tape in find_tapes(self._directory) for path in tape.segments]
        try:
            total = sum(path.stat().st_size for path in segments)
            for path in segments:
                if total <= kept_bytes:
                    return
                total -= path.stat().st_size
                path.unlink()
                _log.info("deleted tape segment %s: all tapes together exceeded %d bytes", path.name, kept_bytes)
        except OSError as error:
            _log.warning("cannot delete old tape segments: %s", error)

    def _close_segment(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
