"""Reads the rows of one file: Parquet, Arrow, JSON lines or plain text, the last two also compressed."""

import bz2
import codecs
import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from diloco.learner.data.documents.rows import BadRow, Stream, Text
from diloco.learner.data.source import DataError
from diloco.learner.data.text import Document
from diloco.runtime.file_kind import HEAD_BYTES, compression_of, problem_of_pointer, problem_of_text
from diloco.runtime.files import open_regular
from diloco.runtime.json_text import JsonError, parse_json

_LINE_BYTES: Final = 64 << 20
_BATCH_BYTES: Final = 4 << 20
_BLOCK_BYTES: Final = 1 << 20
_ROWS: Final = 256
_DEFAULT_COLUMN: Final = "text"
_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".xz")
_NOT_READ: Final = (".csv", ".tsv")
"""Endings of tables that would be taken for plain text."""

Found = Iterator[Text | BadRow]
Reader = Callable[[Document, str], Found]


def rows_of(file: Document, column: str | None) -> Found:
    """The rows of a file. ``column``: see `DocumentsData.column`.

    Raises:
        DataError, OSError: it cannot be read; a damaged file may raise anything else.
    """
    with open_regular(file.path) as opened:
        problem = problem_of(file.path, opened.read(HEAD_BYTES), column)
    if problem:
        raise DataError(f"{file.path}: {problem}")
    yield from _reader_of(file.path.name)(file, column or _DEFAULT_COLUMN)


def problem_of(path: Path, head: bytes, column: str | None) -> str:
    """Why a file that begins with ``head`` cannot be what its name says; empty if it can."""
    reader = _reader_of(path.name)
    if problem := problem_of_pointer(head):
        return problem
    if reader is _plain and column is not None:
        return f"has no column {column}, by the ending of its name; use {', '.join(TABLES)}, or leave column out"
    if _plain_name(path.name).endswith(_NOT_READ):
        return "is a table that is not read; make it Parquet or JSON lines"
    is_table = reader in (_parquet, _arrow)
    return "" if is_table or compression_of(head) else problem_of_text(head)


def is_document(name: str, column: str | None) -> bool:
    """Whether a file of this name, inside of a folder, is read: tables, and without a ``column`` also ``.txt``."""
    plain = _plain_name(name)
    return plain.endswith(IN_FOLDERS if column is None else IN_FOLDERS[:-1])


def _plain_name(name: str) -> str:
    """In lower case, without what says that it is compressed."""
    plain = name.lower()
    return plain.removesuffix(next((ending for ending in _COMPRESSED if plain.endswith(ending)), ""))


def _reader_of(name: str) -> Reader:
    return next((read for ending, read in _READERS.items() if _plain_name(name).endswith(ending)), _plain)


@contextmanager
def _opened(file: Document) -> Iterator[Stream]:
    """A file, unpacked if its first bytes say that it is compressed."""
    with open_regular(file.path) as raw:
        kind = compression_of(raw.read(HEAD_BYTES))
        raw.seek(0)
        unpacked: Any = raw
        if kind == "gzip":
            unpacked = gzip.GzipFile(fileobj=raw)
        elif kind == "bz2":
            unpacked = bz2.BZ2File(raw)
        elif kind == "xz":
            unpacked = lzma.LZMAFile(raw)  # noqa: SIM115  # raw is closed
        elif kind == "zstd":
            import pyarrow as pa  # noqa: PLC0415  # an optional package

            unpacked = io.BufferedReader(pa.CompressedInputStream(raw, "zstd"))
        yield Stream(unpacked, raw)


def _plain(file: Document, _: str) -> Found:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with _opened(file) as stream:
        block = head = stream.text.read(_BLOCK_BYTES)
        if problem := problem_of_text(head[:HEAD_BYTES]):
            raise DataError(f"{file.path}: {problem}")
        try:
            while block:
                decoder.decode(block)
                block = stream.text.read(_BLOCK_BYTES)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            yield BadRow(str(file.path), "is not UTF-8; use UTF-8")
            return
    with _opened(file) as stream:
        if head.startswith(codecs.BOM_UTF8):
            stream.text.read(len(codecs.BOM_UTF8))
        yield Text(stream, str(file.path), 0)


def as_it_is(file: Document) -> Found:
    """A plain file of any code."""
    with open_regular(file.path) as raw:
        raw.seek(file.first_byte)
        yield Text(Stream(raw, raw), str(file.path), 0)


def _parquet(file: Document, column: str) -> Found:
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


def _arrow(file: Document, column: str) -> Found:
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


def _rows(values: Any, first: int, position: int, file: Document, column: str) -> Found:
    """Texts of a column from row ``first`` of its file on."""
    import pyarrow as pa  # noqa: PLC0415  # an optional package

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    for start in range(0, len(values), _ROWS):
        for row, text in enumerate(values.slice(start, _ROWS).cast(pa.large_binary()).to_pylist(), first + start):
            where = f"{file.path}: row {row}"
            if text is None:
                yield BadRow(where, f"{column} is null; use text in every row")
            elif not _is_utf8(text):
                yield BadRow(where, f"{column} is not UTF-8; use UTF-8")
            else:
                yield Text(text, where, position)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _json_lines(file: Document, column: str) -> Found:
    with _opened(file) as stream:
        number = 0
        while line := stream.text.readline(_LINE_BYTES + 1):
            number += 1
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)  # the same line
            where = f"{file.path}: line {number}"
            if len(line) > _LINE_BYTES:
                yield BadRow(where, f"is longer than {_LINE_BYTES >> 20} MiB; use one object a line")
                while line and not line.endswith(b"\n"):
                    line = stream.text.readline(_LINE_BYTES)  # its rest
            elif number == 1 and line.lstrip().startswith(b"["):
                raise DataError(f"{file.path}: is one array; use one object a line, as jq -c '.[]' writes them")
            elif not line.isspace():
                yield _of_line(line, column, where, stream.file.tell())


def _of_line(line: bytes, column: str, where: str, position: int) -> Text | BadRow:
    try:
        value = parse_json(line)
    except JsonError as error:
        return BadRow(where, f"is {error}; use one object a line")
    if not isinstance(value, dict):
        return BadRow(where, f"is a {type(value).__name__}; use one object a line")
    text = value.get(column)
    if not isinstance(text, str):
        what = f"{column} is of type {type(text).__name__}" if column in value else f"has no {column}"
        return BadRow(where, f"{what}; use text in every line")
    return Text(text.encode(), where, position)


_READERS: Final[dict[str, Reader]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_lines,
}
TABLES: Final = tuple(_READERS)
"""Endings of the names of files that have columns or keys, in lower case."""
IN_FOLDERS: Final = (".parquet", ".jsonl", ".ndjson", ".json", ".txt")
"""Endings of the names of files that are read inside of a folder."""


def is_documents(name: str) -> bool:
    """Whether a file's name says that it has columns or keys, or is compressed."""
    return name.lower().endswith(_COMPRESSED) or _plain_name(name).endswith(TABLES)
