"""Plain files as tokens: one token per byte, and one more that ends each document.

Only the list of files is held in memory: bytes are read when they are needed, so a folder may be larger than memory.
Documents are ordered by a hash of their relative paths. That order is the same everywhere and makes every stretch of
the tokens, including the held-out end, a fair sample of the folder.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diloco.learner.data.source import DataError, unreadable

END_OF_DOCUMENT = 256
VOCABULARY_SIZE = 257


@dataclass(frozen=True, slots=True)
class Document:
    """A file as it was found: its size must not change during training."""

    path: Path
    size_bytes: int


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
        index = int(np.searchsorted(self._ends, start, side="right"))
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


def find_documents(path: Path, include: tuple[str, ...], field: str) -> tuple[Document, ...]:
    """Files in ``path`` (or ``path`` itself, whatever its name) that match ``include``; not hidden or empty ones.

    Raises:
        DataError: nothing is there, nothing matches, or something cannot be read; the text names ``field``.
    """
    if not path.exists():
        raise DataError(f"{field}: {path} does not exist")
    if path.is_file():
        found = [("", path)]
    elif path.is_dir():
        found = [(relative, file) for relative, file in _walk(path, field) if _matches(file.name, include)]
        if not found:
            raise DataError(f"{field}: no file in {path} matches {', '.join(include)}; give a file or other patterns")
    else:
        raise DataError(f"{field}: {path} is neither a file nor a folder")
    return ordered(found, field)


def ordered(files: Iterable[tuple[str, Path]], field: str) -> tuple[Document, ...]:
    """Documents for (relative path, file), ordered by a hash of the relative path; empty files are left out.

    Raises:
        DataError: a file cannot be read, or all are empty.
    """
    documents = []
    for _, file in sorted(files, key=lambda pair: hashlib.sha256(pair[0].encode("utf-8", "surrogateescape")).digest()):
        if not os.access(file, os.R_OK):
            raise DataError(f"{field}: {file} cannot be read by this user")
        if size := file.stat().st_size:
            documents.append(Document(file, size))
    if not documents:
        raise DataError(f"{field}: every file there is empty")
    return tuple(documents)


def read_bytes(document: Document, start: int, count: int, field: str = "data.text.path") -> NDArray[np.uint8]:
    """``count`` bytes of a document from byte ``start`` on; ``field`` is named in messages.

    Raises:
        DataError: it cannot be read or is shorter than it was.
    """
    try:
        with document.path.open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), count, start)
    except OSError as error:
        raise unreadable(f"{field}: {document.path}", error) from error
    if len(content) != count:
        raise DataError(
            f"{field}: {document.path} had {document.size_bytes} bytes when this learner started and is now "
            "shorter; restore it: data must not change while a job runs"
        )
    return np.frombuffer(content, dtype=np.uint8)


def _walk(root: Path, field: str) -> Iterator[tuple[str, Path]]:
    def fail(error: OSError) -> None:
        raise unreadable(f"{field}: {error.filename}", error) from error

    for folder, folders, files in os.walk(root, onerror=fail):
        # Hidden folders are not documents: .git, or the copies behind the links of a Kubernetes volume.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file():
                yield path.relative_to(root).as_posix(), path


def _matches(name: str, include: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in include)
