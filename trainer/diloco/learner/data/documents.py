"""Reads the documents of a corpus, one after the other, from Parquet, JSON lines, Arrow or plain text files.

Memory is bounded whatever the size of a file: tables are read in batches of rows, JSON by lines of limited length, and
plain files in pieces. Nothing is unpickled: a folder that `datasets` saved is read as Arrow.
"""

import glob
import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Self

from diloco.learner.data.source import DataError, DataUnavailableError, unreadable
from diloco.learner.data.text import Document, find_documents, ordered
from diloco.model.entrypoint import one_line
from diloco.runtime.files import FileSignature, UnusableFileError, open_regular, read_json, sha256_bytes, signature_of
from diloco.runtime.json_text import JsonError, parse_json
from diloco.runtime.object_store import ObjectStore, StoreError, open_store
from diloco.spec.training import DocumentsData

_IN_FOLDERS: Final = ("*.parquet", "*.jsonl", "*.jsonl.gz", "*.json", "*.txt")
_LINE_BYTES: Final = 64 << 20
_BATCH_BYTES: Final = 4 << 20
_ROWS: Final = 256


class Text(NamedTuple):
    """One document."""

    content: bytes | Document
    """Its text, or the file that it is."""
    where: str
    """Its file, and its row or line there."""
    position: int
    """Bytes of the file up to here, roughly, to measure progress."""


@dataclass(frozen=True, slots=True)
class DocumentFiles:
    """Files of documents, in the order in which they are read; they must not change meanwhile."""

    files: tuple[Document, ...]
    signatures: tuple[FileSignature | str | None, ...]
    """Of each file, when the corpus was found; in a store its version."""
    field: str
    """The manifest's field, for messages."""
    column: str | None = None
    """Where the text is in tables and JSON lines. None: every file is plain text, whatever its name."""
    store: ObjectStore | None = None
    """Where the files are, if they are not on this machine. Each is copied while it is read, into ``copies``."""
    copies: Path | None = None

    @classmethod
    def of(cls, files: tuple[Document, ...], field: str, column: str | None = None) -> Self:
        """``files`` as they are now."""
        return cls(files, tuple(signature_of(file.path) for file in files), field, column)

    def texts(self, index: int) -> Iterator[Text]:
        """The documents of a file.

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

    def _read(self, file: Document) -> Iterator[Text]:
        readers = () if self.column is None else _READERS.items()
        reader = next((read for ending, read in readers if file.path.name.endswith(ending)), _plain)
        try:
            yield from reader(file, self.column or "")
        except DataError as error:
            raise DataError(f"{self.field}: {error}") from error
        except ImportError as error:
            raise DataError(f"{self.field}: needs the package pyarrow; install decoupled-diloco[data]") from error
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
    if "://" in documents.path:
        store, files, versions = _in_store(documents.path, f"{field}.path")
        return DocumentFiles(files, versions, f"{field}.path", documents.column, store, copies)
    return DocumentFiles.of(_find(documents.path, f"{field}.path"), f"{field}.path", documents.column)


def _find(path: str, field: str) -> tuple[Document, ...]:
    place = Path(path)
    if glob.has_magic(path) and not place.exists():
        found = glob.glob(path, recursive=True)  # noqa: PTH207  # of a whole path
        if files := [(one, Path(one)) for one in found if Path(one).is_file()]:
            return ordered(files, field)
        raise DataError(f"{field}: {path} matches no file")
    if (place / "dataset_dict.json").is_file():
        raise DataError(f"{field}: {path} has several splits; use the folder of one, such as {place / 'train'}")
    if (place / "state.json").is_file():
        return ordered([(name, place / name) for name in _saved_files(place, field)], field)
    return find_documents(place, _IN_FOLDERS, field)


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


def _plain(file: Document, _: str) -> Iterator[Text]:
    yield Text(file, str(file.path), 0)


def _parquet(file: Document, column: str) -> Iterator[Text]:
    from pyarrow import parquet  # noqa: PLC0415  # an optional package

    with parquet.ParquetFile(file.path, buffer_size=1 << 20, pre_buffer=False) as table:
        _check_column(table.schema_arrow, column, file)
        first, all_rows = 0, max(1, table.metadata.num_rows)
        for index in range(table.num_row_groups):
            group = table.metadata.row_group(index)
            chunks = (group.column(number) for number in range(group.num_columns))
            size = next(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
            rows = min(1024, max(1, group.num_rows * _BATCH_BYTES // max(1, size)))
            for batch in table.iter_batches(rows, [index], [column], use_threads=False):
                yield from _rows(batch.column(0), first, first * file.size_bytes // all_rows, file, column)
                first += len(batch)


def _arrow(file: Document, column: str) -> Iterator[Text]:
    import pyarrow as pa  # noqa: PLC0415  # an optional package

    with pa.memory_map(str(file.path)) as mapped, pa.ipc.open_stream(mapped) as stream:
        _check_column(stream.schema, column, file)
        first = 0
        for batch in stream:
            yield from _rows(batch.column(column), first, mapped.tell(), file, column)
            first += len(batch)


def _check_column(schema: Any, column: str, file: Document) -> None:
    from pyarrow import types  # noqa: PLC0415  # an optional package

    texts = [
        field.name
        for field in schema
        for kind in [field.type.value_type if types.is_dictionary(field.type) else field.type]
        if types.is_string(kind) or types.is_large_string(kind)
    ]
    if texts.count(column) != 1:
        kind = f"is {schema.field(column).type}" if schema.names.count(column) == 1 else "is not there once"
        raise DataError(
            f"{file.path}: column {column} {kind}; use a column of text: {', '.join(texts) or 'none there'}"
        )


def _rows(values: Any, first: int, position: int, file: Document, column: str) -> Iterator[Text]:
    """Texts of a column from row ``first`` of its file on."""
    import pyarrow as pa  # noqa: PLC0415  # an optional package

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    for start in range(0, len(values), _ROWS):
        for row, text in enumerate(values.slice(start, _ROWS).cast(pa.large_binary()).to_pylist(), first + start):
            where = f"{file.path}: row {row}"
            if text is None:
                raise DataError(f"{where}: {column} is null; use text in every row")
            yield Text(text, where, position)


def _json_lines(file: Document, column: str) -> Iterator[Text]:
    with open_regular(file.path) as raw:
        lines = gzip.GzipFile(fileobj=raw) if file.path.name.endswith(".gz") else raw
        number = 0
        while line := lines.readline(_LINE_BYTES + 1):
            number += 1
            where = f"{file.path}: line {number}"
            if len(line) > _LINE_BYTES:
                raise DataError(f"{where}: is longer than {_LINE_BYTES >> 20} MiB; use one object a line")
            if not line.isspace():
                yield Text(_of_line(line, column, where), where, raw.tell())


def _of_line(line: bytes, column: str, where: str) -> bytes:
    try:
        value = parse_json(line)
    except JsonError as error:
        raise DataError(f"{where}: is {error}; use one object a line") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: is a {type(value).__name__}; use one object a line")
    if not isinstance(value.get(column), str):
        what = f"{column} is of type {type(value[column]).__name__}" if column in value else f"has no {column}"
        raise DataError(f"{where}: {what}; use text in every line")
    return str(value[column]).encode()


_READERS: Final[dict[str, Callable[[Document, str], Iterator[Text]]]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".json": _json_lines,
}
TABLES: Final = tuple(_READERS)
"""Endings of the names of files that have columns or keys."""
