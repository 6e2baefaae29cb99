"""A journal: what a process did and saw, one JSON object per line, appended across restarts.

``diloco run`` writes ``supervisor.jsonl``, a syncer ``journal.jsonl``. Its disk is bounded: beyond a size
``supervisor.jsonl`` becomes ``supervisor.older.jsonl``, of which there is one.

Every entry has ``event``, ``process`` (a learner's id, ``syncer``, a region, or empty) and ``time`` (Unix, seconds).
``local.report.timeline`` interprets them.
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from diloco.runtime.files import open_regular
from diloco.runtime.json_text import parse_json

LIMIT_BYTES = 256 << 20
PART_BYTES = 64 << 20
"""When the file exceeds this, it becomes the older part, in place of the one before (ours)."""
_ALIVE = b'{"event": "alive"'
"""How a line of that event begins, as ``Journal`` writes it."""
_WAITING_BYTES = 1 << 20
"""About the most bytes of entries in memory. While they cannot be written, later ones are dropped, and counted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal."""

    event: str
    """Of a supervisor: ``run``, ``alive`` (now and then), ``start``, ``exit``, ``kill``, ``pause``, ``continue``,
    ``cut``, ``heal``, ``give_up`` or ``end``. Of a syncer: ``serves``, ``admit``, ``fence``, ``note``, ``recovered`` or
    ``finish``."""
    process: str
    time: float
    details: dict[str, Any] = field(default_factory=dict)


class Journal:
    """Appends entries to the file, each at once, so that they survive the supervisor.

    If one cannot be written, it waits in memory and is retried with the next: a run does not end because the disk is
    full. The file is opened for each write, so one that was removed is created again.
    """

    def __init__(self, path: Path, tell: Callable[[str], None] = lambda _: None, part_bytes: int = PART_BYTES) -> None:
        """Append to ``path``, of which each part has about ``part_bytes``.

        ``tell`` is called when entries begin to wait, and when they are written again.
        """
        self._path = path
        self._tell = tell
        self._part_bytes = part_bytes
        self._waiting = bytearray()
        self._begun = False
        self._problem = ""
        self._dropped = 0

    def check(self) -> None:
        """Create the file if need be.

        Raises:
            OSError: it cannot be opened.
        """
        self._write()

    def write(self, event: str, process: str = "", **details: Any) -> None:
        """Append an entry with the current time. Never raises."""
        self.append(Entry(event, process, time.time(), details))

    def append(self, *entries: Entry) -> None:
        """Append entries. Never raises."""
        written = True
        for one in entries:
            if len(self._waiting) >= _WAITING_BYTES:
                written = written and self._attempt()
                if not written:
                    self._dropped += 1
                    continue
            line = {"event": one.event, "process": one.process, "time": round(one.time, 3), **one.details}
            self._waiting += json.dumps(line).encode() + b"\n"
        self._attempt()

    def close(self) -> None:
        """Try once more to write the waiting entries. Never raises."""
        self._attempt()

    def _attempt(self) -> bool:
        """Write what waits, and tell of it when that begins or ceases to fail. Returns whether all is written."""
        try:
            self._write()
        except OSError as error:
            if not self._problem:
                self._problem = error.strerror or str(error)
                self._tell(f"{self._path.name} cannot be written ({self._problem}); the run continues")
            return False
        if self._problem:
            lost = f"; it lacks {self._dropped} entries" if self._dropped else ""
            self._tell(f"{self._path.name} can be written again{lost}")
            self._problem, self._dropped = "", 0
        return True

    def _write(self) -> None:
        # A pipe without a reader is an error, and does not block.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o644)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, flags, 0o644)
        try:
            if not self._begun:
                self._waiting[:0] = self._missing_end(os.fstat(descriptor).st_size)
                self._begun = True
            # On a full disk a part of a line may be written: the next write continues with the rest.
            while self._waiting:
                with memoryview(self._waiting) as waiting:
                    taken = os.write(descriptor, waiting)
                del self._waiting[:taken]
            if os.fstat(descriptor).st_size > self._part_bytes:
                with contextlib.suppress(OSError):  # tried again with the next entry
                    self._path.rename(older_part(self._path))
        finally:
            os.close(descriptor)

    def _missing_end(self, size: int) -> bytes:
        """The end of the last line, if a crash has cut it: the next entry would be a part of it."""
        if not size:
            return b""
        with self._path.open("rb") as file:
            file.seek(size - 1)
            return b"\n" if file.read(1) != b"\n" else b""


def older_part(path: Path) -> Path:
    """Path of what a journal had before it was too long."""
    return path.with_suffix(f".older{path.suffix}")


def read_journal(path: Path, *, sparse: bool = False) -> list[Entry]:
    """The entries of a journal, oldest first; none if there is no file. A truncated or invalid line is skipped.

    ``sparse``: of ``alive`` entries in a row only the last; they are most of a long run's journal.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    lines: Iterable[bytes] = chain(_lines(older_part(path)), _lines(path))
    if sparse:
        lines = _last_of_row(lines)
    return [entry for line in lines if (entry := _entry(line)) is not None]


def _last_of_row(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Without those ``alive`` entries that another one follows."""
    alive = b""
    for line in lines:
        if line.startswith(_ALIVE):
            alive = line
            continue
        yield alive
        alive = b""
        yield line
    yield alive


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open_regular(path) as file:
            left = LIMIT_BYTES
            while line := file.readline(left):
                left -= len(line)
                yield line
    except (FileNotFoundError, NotADirectoryError):
        return


def _entry(line: bytes) -> Entry | None:
    try:
        value = parse_json(line.decode(errors="replace"))
        details = {key: value[key] for key in value if key not in ("event", "process", "time")}
        entry = Entry(str(value["event"]), str(value["process"]), float(value["time"]), details)
        return entry if math.isfinite(entry.time) else None
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
