"""Finds the files of a corpus, on this machine or in an object store, and reads them in one order."""

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from diloco.learner.data.documents.formats import IN_FOLDERS, as_it_is, is_document, problem_of, rows_of
from diloco.learner.data.documents.rows import BadRow, Text
from diloco.learner.data.source import DataError, DataUnavailableError, unreadable
from diloco.learner.data.text import Document, find_documents, ordered, walk
from diloco.model.entrypoint import one_line
from diloco.runtime.files import FileSignature, UnusableFileError, read_json, sha256_bytes, signature_of
from diloco.runtime.object_store import ObjectStore, StoreError, open_store
from diloco.spec.training import DocumentsData


@dataclass(frozen=True, slots=True)
class DocumentFiles:
    """Files of documents, in the order in which they are read; they must not change meanwhile."""

    files: tuple[Document, ...]
    signatures: tuple[FileSignature | str | None, ...]
    """Of each file, when the corpus was found; in a store its version."""
    field: str
    """The manifest's field, for messages."""
    column: str | None = None
    """Where the text is in tables and JSON lines; see `DocumentsData.column`."""
    bad_rows: float = 0.0
    """Largest fraction of the rows that may have no usable text."""
    as_they_are: bool = False
    """Every file is plain text, whatever its name or code."""
    store: ObjectStore | None = None
    """Where the files are, if they are not on this machine. Each is copied while it is read, into ``copies``."""
    copies: Path | None = None

    @classmethod
    def of(cls, files: tuple[Document, ...], field: str) -> Self:
        """Plain ``files`` as they are now."""
        return cls(files, _signatures(files), field, as_they_are=True)

    def rows(self, index: int) -> Iterator[Text | BadRow]:
        """The rows of a file.

        Raises:
            DataError: it cannot be read as what its name says, or it has changed; one line that names it.
        """
        if self.store is None:
            yield from self._read(self.files[index])
            if signature_of(self.files[index].path) != self.signatures[index]:
                changed = "has changed while it was read; start again when it is complete"
                raise DataError(f"{self.field}: {self.files[index].path}: {changed}")
        else:
            with _copied(self.files[index], self.signatures[index], self.store, self.copies, self.field) as copy:
                yield from self._read(copy)

    def _read(self, file: Document) -> Iterator[Text | BadRow]:
        try:
            yield from as_it_is(file) if self.as_they_are else rows_of(file, self.column)
        except DataError as error:
            raise DataError(f"{self.field}: {error}") from error
        except ImportError as error:
            raise DataError(f"{self.field}: needs the package pyarrow; run pip install '.[data]' in a clone") from error
        except OSError as error:
            raise unreadable(f"{self.field}: {file.path}", error) from error
        except Exception as error:  # a damaged file may raise anything: show it to the user in one line
            raise DataError(f"{self.field}: {file.path}: cannot be read ({one_line(error)})") from error


def find_document_files(documents: DocumentsData, field: str, copies: Path | None = None) -> DocumentFiles:
    """The files that ``documents.path`` names, ordered by a hash of their paths.

    ``copies``: a folder for copies of what is not on this machine. Default: one for temporary files.

    Raises:
        DataError: nothing is there, or something cannot be read; one line that names ``field``.
    """
    field = f"{field}.path"
    store: ObjectStore | None = None
    versions: tuple[FileSignature | str | None, ...]
    if "://" in documents.path:
        store, files, versions = _in_store(documents.path, field)
    else:
        files = _find(documents.path, documents.column, field)
        versions = _signatures(files)
    return DocumentFiles(files, versions, field, documents.column, documents.bad_rows, store=store, copies=copies)


def _signatures(files: tuple[Document, ...]) -> tuple[FileSignature | str | None, ...]:
    return tuple(signature_of(file.path) for file in files)


def _find(path: str, column: str | None, field: str) -> tuple[Document, ...]:
    place, problem = Path(path), partial(problem_of, column=column)
    if glob.has_magic(path) and not place.exists():
        if found := _matching(path, field):
            return ordered([(str(one), one) for one in found], field, problem)
        raise DataError(f"{field}: {path} matches no file")
    if (place / "dataset_dict.json").is_file():
        raise DataError(f"{field}: {path} has several splits; use the folder of one, such as {place / 'train'}")
    if (place / "state.json").is_file():
        return ordered([(name, place / name) for name in _saved_files(place, field)], field, problem)
    endings = ", ".join(f"*{ending}" for ending in IN_FOLDERS)
    return find_documents(place, partial(is_document, column=column), endings, field, problem)


def _matching(pattern: str, field: str) -> list[Path]:
    """The files that match. With ``**``, folders are walked, as `glob` would follow a loop of links 40 times."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return [found for found in map(Path, glob.glob(pattern)) if found.is_file()]  # noqa: PTH207  # of a whole path
    fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    root = Path(*parts[:fixed])
    matching = (path for _, path in walk(root, field) if _fits(path.relative_to(root).parts, parts[fixed:]))
    return [path for path in matching if path.is_file()]


def _fits(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return len(pattern) == 1 or any(_fits(parts[skipped:], pattern[1:]) for skipped in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def _in_store(url: str, field: str) -> tuple[ObjectStore, tuple[Document, ...], tuple[str, ...]]:
    """The files of one folder that ``url`` names, a pattern or a name in its last part, and their versions."""
    folder, _, pattern = url.rpartition("/")
    try:
        store = open_store(folder)
        names = sorted(name for name in store.names() if fnmatchcase(name, pattern))
        described = [(name, *store.size_and_version(name)) for name in names]
    except StoreError as error:
        raise DataUnavailableError(f"{field}: {error}") from error
    found = [(Document(Path(name), size), version) for name, size, version in described]
    if not any(file.size_bytes for file, _ in found):
        raise DataError(f"{field}: {url} matches no file with content; use BUCKET/FOLDER/*.parquet, for instance")
    found.sort(key=lambda one: sha256_bytes(str(one[0].path).encode()))
    return store, tuple(file for file, _ in found), tuple(version for _, version in found)


@contextmanager
def _copied(file: Document, version: object, store: ObjectStore, folder: Path | None, field: str) -> Iterator[Document]:
    """A copy of a file, as it was when it was found, that is removed afterwards."""
    with TemporaryDirectory(prefix=".copy.", suffix=".part", dir=folder) as place:
        path = Path(place, file.path.name)
        try:
            store.download(file.path.name, path, file.size_bytes)
            _, now = store.size_and_version(file.path.name)
        except StoreError as error:
            raise DataUnavailableError(f"{field}: {error}") from error
        except OSError as error:
            raise unreadable(f"{field}: {path} cannot be written", error) from error
        if now != version:
            raise DataError(f"{field}: {file.path} in {store.url} has changed; start again when it is complete")
        yield Document(path, file.size_bytes)


def _saved_files(folder: Path, field: str) -> list[str]:
    """The names of the data files of a folder that ``Dataset.save_to_disk`` wrote."""
    try:
        names = [str(file["filename"]) for file in read_json(folder / "state.json")["_data_files"]]
    except (UnusableFileError, KeyError, TypeError) as error:
        raise DataError(
            f"{field}: {folder / 'state.json'} is not that of a saved dataset ({one_line(error)})"
        ) from error
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(f"{field}: {folder} has no {missing[0]}, which its state.json names")
    return names
