"""Tells from a file's first bytes what it is, whatever its name, so that nothing is taken for what it is not."""

import codecs
from pathlib import Path
from typing import Final

from diloco.runtime.files import open_regular

HEAD_BYTES: Final = 4096
"""Bytes from a file's beginning that are looked at."""

_LFS: Final = b"version https://git-lfs.github.com/spec/"
_COMPRESSED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz"}
_BZIP2: Final = (b"BZh", b"1AY&SY")
"""What it begins with, and what follows the digit after that."""
_BINARY: Final = {
    b"PAR1": "Parquet",
    b"ARROW1": "an Arrow file",
    b"DILOCOTK": "a token file",
    b"PK\x03\x04": "a zip archive",
    b"%PDF-": "PDF",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF\r\n": "HDF5",
    b"SQLite format 3\0": "an SQLite database",
}
_WIDE: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


def head_of(path: Path) -> bytes:
    """The first ``HEAD_BYTES`` of a regular file.

    Raises:
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        return file.read(HEAD_BYTES)


def problem_of_pointer(head: bytes) -> str:
    """The problem with a file that git-lfs has left out of a clone; empty if it is none."""
    return "is a pointer of git-lfs, not the file itself; run 'git lfs pull'" if head.startswith(_LFS) else ""


def compression_of(head: bytes) -> str:
    """gzip, zstd, xz or bz2; empty if it is not compressed."""
    if head.startswith(_BZIP2[0]) and head[4:].startswith(_BZIP2[1]):
        return "bz2"
    return next((name for magic, name in _COMPRESSED.items() if head.startswith(magic)), "")


def problem_of_text(head: bytes) -> str:
    """Why a file that is not compressed cannot be plain text in UTF-8 or another code of 8 bits; empty if it can."""
    if problem := problem_of_pointer(head):
        return problem
    if head.startswith(_WIDE):
        return "is text in UTF-16 or UTF-32; use UTF-8"
    kind = next((name for magic, name in _BINARY.items() if head.startswith(magic)), "")
    return f"is {kind or 'binary'}, not text; use text" if kind or b"\0" in head else ""
