"""The files of a tape: their names, their order, and how one is read whether it is compressed or not.

One epoch (one syncer process) makes one tape. Its first segment is ``NNNNNN.jsonl``, and when that reaches a size the
tape continues in ``NNNNNN.MMMM.jsonl``. A closed segment is compressed to a file of the same name and ``.gz``.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from diloco.runtime.files import open_regular

COMPRESSED = ".gz"
_SEGMENT = re.compile(r"^(\d{6,})(?:\.(\d{4,}))?\.jsonl(\.gz)?$")
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
"""What reading a compressed file raises that was cut off or changed."""


@dataclass(frozen=True, slots=True)
class TapeFiles:
    """One epoch's tape on disk."""

    epoch: int
    segments: tuple[Path, ...]
    """The segments that are there, in order."""

    @property
    def last(self) -> str:
        """The last segment's name without what a compression adds, as in the tape that follows it: ``000003.0012``."""
        return plain_path(self.segments[-1]).name.removesuffix(".jsonl")


def segment_path(directory: Path, epoch: int, segment: int) -> Path:
    """Path of an epoch's segment, counted from 0, while it is not compressed."""
    return directory / (f"{epoch:06d}.jsonl" if segment == 0 else f"{epoch:06d}.{segment:04d}.jsonl")


def compressed_path(path: Path) -> Path:
    """Path of a segment once it is compressed."""
    return path.with_name(path.name + COMPRESSED)


def plain_path(path: Path) -> Path:
    """Path of a segment before it was compressed."""
    return path.with_name(path.name.removesuffix(COMPRESSED))


def segment_number(path: Path) -> int:
    """A segment's number in its epoch, from 0."""
    match = _SEGMENT.match(path.name)
    return int(match[2] or 0) if match else 0


def find_tapes(directory: Path) -> tuple[TapeFiles, ...]:
    """The tapes in a directory, oldest epoch first, each with its segments in order.

    Of a segment that is there twice, as its compression was interrupted, the file that is not compressed counts.
    """
    found: dict[int, dict[int, Path]] = {}
    for path in sorted(directory.iterdir(), reverse=True) if directory.is_dir() else ():
        if match := _SEGMENT.match(path.name):  # in reverse order, X.jsonl comes after X.jsonl.gz
            found.setdefault(int(match[1]), {})[int(match[2] or 0)] = path
    return tuple(
        TapeFiles(epoch, tuple(segments[number] for number in sorted(segments)))
        for epoch, segments in sorted(found.items())
    )


@contextmanager
def open_segment(path: Path) -> Iterator[BinaryIO]:
    """Open a segment for reading. One that was compressed since it was found is read in its new form.

    Raises:
        OSError: it cannot be read. What reading a damaged compressed file raises is in ``DAMAGED``.
    """
    try:
        raw = open_regular(path)
    except FileNotFoundError:
        if path.name.endswith(COMPRESSED):
            raise
        path = compressed_path(path)
        raw = open_regular(path)
    with raw:
        if not path.name.endswith(COMPRESSED):
            yield raw
            return
        with gzip.GzipFile(fileobj=raw, mode="rb") as plain:
            yield cast("BinaryIO", plain)
