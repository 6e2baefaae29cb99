"""Plain files as tokens: one token per byte, and one more that ends each document.

Only the list of files is held in memory: bytes are read when they are needed, so a folder may be larger than memory.
Documents are ordered by a hash of their relative paths. That order is the same everywhere and makes every stretch of
the tokens, including the held-out end, a fair sample of the folder.

The default text is the standard library sources of the running Python, so that nothing is downloaded.
"""

import codecs
import hashlib
import logging
import os
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from diloco.learner.data.source import DataError, unreadable
from diloco.runtime.file_kind import compression_of, head_of, problem_of_text
from diloco.spec.training import TextData

_log = logging.getLogger(__name__)

END_OF_DOCUMENT = 256
VOCABULARY_SIZE = 257

_ENDINGS: Final = 5
"""So many kinds of files that are left out are named."""

Problem = Callable[[Path, bytes], str]
"""Why a file that begins with these bytes cannot be read; empty if it can."""


@dataclass(frozen=True, slots=True)
class Document:
    """A file as it was found: its size must not change during training."""

    path: Path
    size_bytes: int
    """Of its text."""
    first_byte: int = 0
    """Where its text begins: after a byte order mark."""


class ByteText:
    """A ``TokenSource`` over documents. Tokens are uint16."""

    end_of_document = END_OF_DOCUMENT

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = tuple(documents)
        sizes = np.array([document.size_bytes + 1 for document in self._documents], dtype=np.int64)
        self._ends = np.cumsum(sizes)

    @property
    def vocabulary_size(self) -> int:
        """256 bytes and the end-of-document token."""
        return VOCABULARY_SIZE

    @property
    def documents(self) -> tuple[Document, ...]:
        """The documents, in the order of their tokens."""
        return self._documents

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._documents else 0

    def read(self, start: int, stop: int) -> NDArray[np.uint16]:
        """Tokens ``start`` to ``stop``.

        Raises:
            DataError: a file cannot be read, or its length has changed.
        """
        out = np.empty(stop - start, dtype=np.uint16)
        index = int(self._ends.searchsorted(start, side="right"))
        at = start
        while at < stop:
            document, end = self._documents[index], int(self._ends[index])
            until = min(stop, end)
            begin = end - 1 - document.size_bytes
            wanted = min(until, end - 1) - at
            if wanted > 0:
                out[at - start : at - start + wanted] = read_bytes(document, at - begin, wanted)
            if until == end:
                out[end - 1 - start] = END_OF_DOCUMENT
            at, index = until, index + 1
        return out


def find_documents(
    path: Path, is_read: Callable[[str], bool], described: str, field: str, problem: Problem
) -> tuple[Document, ...]:
    """Files in ``path`` (or ``path`` itself, whatever its name) whose names are to be read; not hidden or empty ones.

    ``described``: these names, for messages. ``problem``: see `ordered`. The log says how many were left out.

    Raises:
        DataError: nothing is there, nothing matches, or something cannot be read; the text names ``field``.
    """
    if not path.exists():
        raise DataError(f"{field}: {path} does not exist")
    if path.is_file():
        return ordered([("", path)], field, problem)
    if not path.is_dir():
        raise DataError(f"{field}: {path} is neither a file nor a folder")
    found = list(walk(path, field))
    matching = [(name, file) for name, file in found if is_read(file.name) and file.is_file()]
    if not matching:
        raise DataError(f"{field}: no file in {path} matches {described}; give a file or other patterns")
    documents = ordered(matching, field, problem)
    kept = {document.path for document in documents}
    endings = Counter(file.suffix or file.name for _, file in found if file not in kept)
    left_out = ", ".join(f"{count} x {ending}" for ending, count in endings.most_common(_ENDINGS)) or "none"
    _log.info("%s: %d of %d file(s) in %s are read; left out: %s", field, len(kept), len(found), path, left_out)
    return documents


def ordered(files: Iterable[tuple[str, Path]], field: str, problem: Problem) -> tuple[Document, ...]:
    """Documents for (relative path, file), ordered by a hash of the relative path; empty files are left out.

    ``problem``: why a file that begins with these bytes cannot be read; empty if it can.

    Raises:
        DataError: a file cannot be read, or all are empty.
    """
    documents = []
    for _, file in sorted(files, key=lambda pair: hashlib.sha256(pair[0].encode("utf-8", "surrogateescape")).digest()):
        try:
            head = head_of(file)
            size = file.stat().st_size
        except OSError as error:
            raise unreadable(f"{field}: {file}", error) from error
        if told := problem(file, head):
            raise DataError(f"{field}: {file} {told}")
        mark = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
        if size > mark:
            documents.append(Document(file, size - mark, mark))
    if not documents:
        raise DataError(f"{field}: every file there is empty")
    return tuple(documents)


def problem_of_bytes(_: Path, head: bytes) -> str:
    """A `Problem` for files of which each byte is a token."""
    kind = compression_of(head)
    return f"is compressed ({kind}); use data.documents, which unpacks it" if kind else problem_of_text(head)


def read_bytes(document: Document, start: int, count: int, field: str = "data.text.path") -> NDArray[np.uint8]:
    """``count`` bytes of a document from byte ``start`` on; ``field`` is named in messages.

    Raises:
        DataError: it cannot be read or is shorter than it was.
    """
    try:
        file = os.open(document.path, os.O_RDONLY | os.O_CLOEXEC)  # Python's file objects take longer than the read
        try:
            content = os.pread(file, count, document.first_byte + start)
        finally:
            os.close(file)
    except OSError as error:
        raise unreadable(f"{field}: {document.path}", error) from error
    if len(content) != count:
        raise DataError(
            f"{field}: {document.path} had {document.size_bytes} bytes when this learner started and is now "
            "shorter; restore it: data must not change while a job runs"
        )
    return np.frombuffer(content, dtype=np.uint8)


def walk(root: Path, field: str) -> Iterator[tuple[str, Path]]:
    """Files below a folder, with their relative paths, in any order; also links that lead nowhere.

    Links to folders are followed, except to one that the link itself lies in.

    Raises:
        DataError: a folder cannot be read.
    """

    def fail(error: OSError) -> NoReturn:
        raise unreadable(f"{field}: {error.filename}", error) from error

    def identity(folder: Path) -> tuple[int, int]:
        try:
            found = folder.stat()
        except OSError as error:
            fail(error)
        return found.st_dev, found.st_ino

    above = {root: frozenset([identity(root)])}
    for name, folders, files in os.walk(root, onerror=fail, followlinks=True):
        folder = Path(name)
        around = above.pop(folder)
        # Hidden folders are not documents: .git, or the copies behind the links of a Kubernetes volume.
        inside = {folder / one: identity(folder / one) for one in folders if not one.startswith(".")}
        above |= {one: around | {own} for one, own in inside.items() if own not in around}
        folders[:] = [one.name for one in inside if one in above]
        for one in files:
            path = folder / one
            if not one.startswith("."):
                yield path.relative_to(root).as_posix(), path


_FIELD = "data.text"
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def standard_library() -> tuple[Document, ...]:
    """The sources of the running Python, in the order of a hash of their paths.

    Installed packages, tests and test data are left out, so every installation of one version has the same.

    Raises:
        DataError: this Python was installed without sources.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files: list[tuple[str, Path]] = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - _LEFT_OUT  # else it goes through all that is installed
        paths = (Path(folder, name) for name in names if name.endswith(".py"))
        files += [(path.relative_to(root).as_posix(), path) for path in paths if path.is_file()]
    if not files:
        raise DataError(f"{_FIELD}: this Python has no standard library sources in {root}; use data.text.path")
    return ordered(files, _FIELD, problem_of_bytes)


def open_text(text: TextData) -> ByteText:
    """Plain files, or the default corpus, as byte tokens.

    Raises:
        DataError: they are missing or empty.
    """
    if text.path is None:
        return ByteText(standard_library())

    def is_read(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in text.include)

    patterns = ", ".join(text.include)
    return ByteText(find_documents(Path(text.path), is_read, patterns, f"{_FIELD}.path", problem_of_bytes))
