"""Writes the tape of one epoch, and continues after the disk was full.

Lines are passed to the system with every batch of events, so a killed process loses none that it acted on. They are not
forced to disk: a tape explains a run, but only a checkpoint is needed to resume it. While the disk is full, lines wait
in memory, up to a limit; beyond it the tape ends there, and a message says so.

When a segment has its size, the next one begins, with the engine's state. Closed segments are compressed, and in time
deleted, by a keeper (`keeper`).
"""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from diloco.core.engine.actions import Action
from diloco.core.engine.events import Event
from diloco.tape.keeper import TapeKeeper, TapeLimits
from diloco.tape.reader import TapeEnd, TapeError, TapeHeader, end_line, header_line, last_line, seal
from diloco.tape.records import to_plain
from diloco.tape.segments import TapeFiles, find_tapes, segment_path

_log = logging.getLogger(__name__)

HEADERS = 4
"""A segment is at least so many times as long as its header, so that headers are a small part of the tape (ours)."""


class TapeWriter:
    """The tape of one epoch. Owned by the event loop: not for several threads."""

    def __init__(
        self,
        directory: Path,
        header: TapeHeader,
        limits: TapeLimits,
        state: Callable[[], dict[str, Any]] | None = None,
        keeper: TapeKeeper | None = None,
    ) -> None:
        """Begin the tape. A full disk is no error: the lines wait.

        ``state`` returns the engine's whole state after the last appended event, with which a further segment begins;
        without it the tape is one segment. ``keeper`` ends with the tape; without it closed segments stay as they are.

        Raises:
            OSError: ``directory`` cannot be created.
        """
        directory.mkdir(parents=True, exist_ok=True)
        older = [tape for tape in find_tapes(directory) if tape.epoch < header.epoch]
        self._header = _after(older[-1], header) if older else header
        self._directory, self._epoch, self._limits = directory, header.epoch, limits
        self._state, self._keeper, self._now = state, keeper, 0.0
        self._segment = 0
        self._descriptor: int | None = None
        self._written = 0
        self._waiting = bytearray()
        self.seq = 0
        """Number of the last line appended."""
        self._chain = ""
        self._segment_bytes = limits.segment_bytes
        self.ended = False
        """Whether the tape was given up because it could not be written for too long."""
        self._over = False
        """Whether its last line was added."""
        self.failing = ""
        """Why lines are waiting now; empty if none are."""
        self._begin_segment()
        self.flush()

    @property
    def problem(self) -> str:
        """Why the tape is incomplete or waits for the disk; empty if it does not."""
        if self.ended:
            return f"the tape ended at line {self.seq}: {self.failing}"
        return f"the tape waits for the disk: {self.failing}" if self.failing else ""

    @property
    def current(self) -> Path:
        """The open segment."""
        return segment_path(self._directory, self._epoch, self._segment)

    def append(self, now: float, event: Event, actions: list[Action]) -> None:
        """Add one event and its actions; ``flush`` passes them to the system."""
        if self.ended or self._over:
            return
        self.seq += 1
        self._now = now
        body = {
            "seq": self.seq,
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
            if self._state is not None and self._written > self._segment_bytes and not self._over:
                self._rotate()
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

    def end(self, model: str = "") -> None:
        """Add the line that ends the tape, unless it is there: nothing more is recorded. ``model``: as in `TapeEnd`."""
        if self.ended or self._over:
            return
        self._over = True
        self.seq += 1
        line, self._chain = end_line(TapeEnd(model), self.seq, self._chain)
        self._waiting += line
        self.flush()

    def close(self) -> None:
        """End the tape, write what waits, close the file, and end the keeper."""
        self.end()
        self.flush()
        self._close_segment()
        if self._keeper is not None:
            self._keeper.close()

    def _write(self) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self.current, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            self._written = 0
        # After a short write, what was written is removed from the front, so the next write continues there.
        while self._waiting:
            with memoryview(self._waiting) as waiting:
                taken = os.write(self._descriptor, waiting)
            self._written += taken
            del self._waiting[:taken]

    def _give_up(self) -> None:
        _log.error("the tape ends at seq %d: it could not be written for too long (%s)", self.seq, self.failing)
        self.ended = True
        self._waiting.clear()
        self._close_segment()

    def _rotate(self) -> None:
        assert self._state is not None
        self._close_segment()
        self._segment += 1
        self.seq += 1
        self._header = replace(self._header, engine={}, state=self._state(), now=self._now)
        self._begin_segment()

    def _begin_segment(self) -> None:
        line, self._chain = header_line(self._header, self.seq, self._chain)
        self._segment_bytes = max(self._limits.segment_bytes, HEADERS * len(line))
        self._waiting += line
        if self._keeper is not None:
            self._keeper.request(self.current, self._segment_bytes)

    def _close_segment(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _after(before: TapeFiles, header: TapeHeader) -> TapeHeader:
    """The header of a tape that comes after another."""
    try:
        seq, chain = last_line(before.segments[-1])
    except TapeError as error:
        _log.warning("%s", error)
        seq, chain = 0, ""
    return replace(header, previous=before.last, previous_seq=seq, previous_chain=chain)
