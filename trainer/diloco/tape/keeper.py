"""Keeps the tapes' files within a bound: compresses closed segments, and deletes the oldest.

It works in a thread of its own, so neither the engine nor a merge waits for it. A crash leaves every segment whole at
any moment: a compressed file gets its name when it is complete and on disk, the uncompressed one is deleted after that,
and what a crash left half-done is done again. Segments are deleted one by one from the oldest on, so a gap anywhere
else is damage.
"""

import gzip
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from diloco.runtime.files import fsync, open_regular
from diloco.tape.segments import COMPRESSED, compressed_path, find_tapes, plain_path

_log = logging.getLogger(__name__)

LARGEST_SEGMENT_BYTES: Final = 64 << 20
"""A segment of a tape with room for many (ours)."""
SEGMENTS: Final = 16
"""The bound is at least so many segments, so that deleting one leaves most of the tape (ours)."""
_BLOCK_BYTES: Final = 1 << 20
_LEVEL: Final = 6
_NICENESS: Final = 10
"""Merges have precedence on a busy machine."""
_PART: Final = ".part"


@dataclass(frozen=True, slots=True)
class TapeLimits:
    """Sizes that bound the tape."""

    segment_bytes: int = LARGEST_SEGMENT_BYTES
    """When a segment exceeds this, it is closed and the next one begun."""
    kept_bytes: int | None = 1 << 30
    """All segments of all epochs; the oldest closed ones are deleted first. None: all are kept (``--record``)."""
    waiting_bytes: int = 32 << 20
    """Lines kept in memory while they cannot be written."""

    @classmethod
    def of_size(cls, kept_bytes: int, *, keep_all: bool = False) -> Self:
        """Limits under which all files together have at most ``kept_bytes``; ``keep_all``: nothing is deleted."""
        segment_bytes = min(LARGEST_SEGMENT_BYTES, kept_bytes // SEGMENTS)
        return cls(segment_bytes, None if keep_all else kept_bytes)


class TapeKeeper:
    """The files in a directory of tapes. Methods except ``tidy`` are of the event loop."""

    def __init__(self, directory: Path, limits: TapeLimits) -> None:
        """Delete what a killed process left half-done, before a new tape begins. An error is only logged."""
        self._directory, self._limits = directory, limits
        self._thread = ThreadPoolExecutor(1, "tape", _be_nice)
        self._stopped = threading.Event()
        self._problem = ""
        try:
            self._clear_leftovers()
        except OSError as error:
            self._tell(f"cannot delete leftovers of tapes: {error}")

    def request(self, current: Path, open_bytes: int) -> None:
        """Tidy soon. ``current``: the segment that is being written, which may have ``open_bytes``."""
        self._thread.submit(self.tidy, current, open_bytes)

    def close(self) -> None:
        """End the thread soon; what it was doing is done again after the next start."""
        self._stopped.set()
        self._thread.shutdown()

    def tidy(self, current: Path, open_bytes: int) -> None:
        """Compress closed segments and delete the oldest ones beyond the bound. Never raises."""
        try:
            self._delete_oldest(current, open_bytes)
            for path in self._closed(current):
                if self._stopped.is_set():
                    return
                if not path.name.endswith(COMPRESSED):
                    self._compress(path)
                    self._delete_oldest(current, open_bytes)
        except OSError as error:
            self._tell(f"cannot tidy the tapes: {error}")
        else:
            self._problem = ""

    def _closed(self, current: Path) -> list[Path]:
        """The segments before ``current``, oldest first."""
        found: list[Path] = []
        for tape in find_tapes(self._directory):
            for path in tape.segments:
                if plain_path(path) == current:
                    return found
                found.append(path)
        return found

    def _clear_leftovers(self) -> None:
        if not self._directory.is_dir():
            return
        for path in list(self._directory.iterdir()):
            if path.name.endswith(COMPRESSED + _PART) or compressed_path(path).exists():
                path.unlink(missing_ok=True)
        for tape in find_tapes(self._directory):
            last = tape.segments[-1]
            # Killed while it wrote the segment's header: nothing in it can be replayed.
            if not last.name.endswith(COMPRESSED) and _without_a_line(last):
                last.unlink()

    def _delete_oldest(self, current: Path, open_bytes: int) -> None:
        if self._limits.kept_bytes is None:
            return
        closed = self._closed(current)
        total = sum(_size(path) for path in closed)
        # The open segment grows to its size, and a compressed file is written beside the one that it replaces.
        room = max(0, self._limits.kept_bytes - 2 * open_bytes)
        for path in closed:
            if total <= room:
                return
            total -= _size(path)
            path.unlink(missing_ok=True)
            _log.info("deleted tape segment %s: tapes may have %d bytes", path.name, self._limits.kept_bytes)

    def _compress(self, path: Path) -> None:
        """Replace a closed segment by a compressed file.

        Raises:
            OSError: it could not be written; the segment is unchanged.
        """
        target = compressed_path(path)
        part = target.with_name(f".{target.name}{_PART}")
        try:
            with open_regular(path) as plain, part.open("wb") as raw:
                with gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed:
                    while block := plain.read(_BLOCK_BYTES):
                        if self._stopped.is_set():
                            return
                        packed.write(block)
                raw.flush()
                os.fsync(raw.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        fsync(self._directory)
        path.unlink(missing_ok=True)

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("%s; trying again with the next segment", problem)
            self._problem = problem


def _without_a_line(path: Path) -> bool:
    """Whether no line of an uncompressed segment is complete."""
    with open_regular(path) as file:
        while block := file.read(_BLOCK_BYTES):
            if b"\n" in block:
                return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _be_nice() -> None:
    """Give way to other threads of the process."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
