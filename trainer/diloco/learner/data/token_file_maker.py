"""Makes a token file from documents, in bounded memory whatever the length of a document."""

import io
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from diloco.learner.data.documents import DocumentFiles, find_document_files
from diloco.learner.data.documents.rows import Rows, Stream, Text
from diloco.learner.data.source import DataError, Tokens, unreadable
from diloco.learner.data.text import open_text
from diloco.learner.data.tokenfile import TokenFileInfo, write_token_file
from diloco.learner.data.tokenizer import ByteTokenizer, FolderTokenizer, Tokenizer, tokenizer_of
from diloco.model.entrypoint import one_line
from diloco.spec.training import DocumentsData, TextData

_PIECE_BYTES = 4 << 20
_BATCH_BYTES = 1 << 20
"""Of pieces that are tokenized at once, on all processors; tokens take a hundred times that meanwhile."""
_BATCH_PIECES: Final = 4096
_CHARACTER_BYTES = 4
"""Bytes of the longest UTF-8 character."""
_FIRST_BYTES = ((4, 0xF0), (3, 0xE0), (2, 0xC0))
"""Length in bytes of a character, and the lowest value of its first byte."""


class Progress(NamedTuple):
    """How far the making of a token file is."""

    done_bytes: int
    """Of the files that are read, or of the documents that were given."""
    all_bytes: int
    """0: not known."""
    tokens: int
    seconds: float

    def __str__(self) -> str:
        seconds, share = max(self.seconds, 1e-9), self.done_bytes / self.all_bytes if self.all_bytes else 0
        left = f", {timedelta(seconds=round(seconds / share - seconds))} left" if share else ""
        done = f"{share:.0%} of {self.all_bytes / 1e6:,.1f}" if self.all_bytes else f"{self.done_bytes / 1e6:,.1f}"
        return f"tokenized {done} MB, {self.tokens / seconds:,.0f} tokens/s{left}"


def at_most_every(seconds: float, tell: Callable[[Progress], object]) -> Callable[[Progress], None]:
    """``tell``, but only for calls with so many seconds of progress since the last one that it had."""
    told = 0.0

    def sometimes(now: Progress) -> None:
        nonlocal told
        if now.seconds >= told + seconds:
            told = now.seconds
            tell(now)

    return sometimes


class _Piece(NamedTuple):
    content: bytes
    where: str
    last: bool
    """Of its document."""


def make_token_file(
    source: TextData | DocumentsData | Iterable[str | bytes],
    output: Path,
    tokenizer: Tokenizer | None = None,
    tell: Callable[[Progress], object] = lambda _: None,
) -> TokenFileInfo:
    """Write the documents of ``source`` as tokens to ``output``; ``tell`` is called after every MiB or so.

    ``source``: files, or an iterable of texts. ``tokenizer``: default is that of ``source``, or one token per byte, as
    with ``data.text``.

    Raises:
        DataError: the documents, the tokenizer or ``output`` cannot be used; one line that names it.
    """
    chosen: Tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    if isinstance(source, DocumentsData):
        documents = _of_files(find_document_files(source, "data.documents"))
        chosen = tokenizer_of(source, "data.documents") if tokenizer is None else tokenizer
    elif isinstance(source, TextData):
        documents = _of_files(DocumentFiles.of(open_text(source).documents, "data.text.path"))
    else:
        documents = _Documents(_given(source), 0)
    try:
        return _write(documents, output, chosen, tell)
    except OSError as error:
        raise unreadable(f"{output}: cannot be written", error) from error


def make_from_files(
    files: DocumentFiles, output: Path, tokenizer: Tokenizer, tell: Callable[[Progress], object]
) -> TokenFileInfo:
    """``make_token_file`` of files that were found already.

    Raises:
        DataError: they or the tokenizer cannot be used.
        OSError: ``output`` cannot be written; nothing is left of it.
    """
    return _write(_of_files(files), output, tokenizer, tell)


class _Documents(NamedTuple):
    texts: Iterator[Text]
    """``position``: bytes of all documents up to there, roughly."""
    all_bytes: int


def _of_files(files: DocumentFiles) -> _Documents:
    def texts() -> Iterator[Text]:
        before = 0
        for index, file in enumerate(files.files):
            for text in rows.usable(files.rows(index)):
                yield text._replace(position=before + min(file.size_bytes, text.position))
            before += file.size_bytes
        rows.end()

    rows = Rows(files.field, files.bad_rows)
    return _Documents(texts(), sum(file.size_bytes for file in files.files))


def _given(source: Iterable[str | bytes]) -> Iterator[Text]:
    if isinstance(source, str | bytes):
        raise DataError("source: is one text; use an iterable of texts, or TextData(path=...)")
    done = 0
    for number, document in enumerate(source):
        try:
            content = document.encode() if isinstance(document, str) else document
        except UnicodeEncodeError:
            raise DataError(f"source: document {number} has half of a surrogate pair; use valid Unicode") from None
        if not isinstance(content, bytes):
            raise DataError(f"source: document {number} is a {type(content).__name__}; use str or bytes")
        done += len(content)
        yield Text(content, f"document {number}", done)


def _write(
    documents: _Documents, output: Path, tokenizer: Tokenizer, tell: Callable[[Progress], object]
) -> TokenFileInfo:
    tokens = _tokens(documents, tokenizer, tell)
    return write_token_file(output, tokens, tokenizer.vocabulary_size, tokenizer.name, tokenizer.end_of_document)


def _tokens(documents: _Documents, tokenizer: Tokenizer, tell: Callable[[Progress], object]) -> Iterator[Tokens]:
    began, tokens = time.monotonic(), 0
    for done_bytes, batch in _batches(documents):
        encoded = _encode(tokenizer, batch)
        tokens += len(encoded)
        yield encoded
        tell(Progress(done_bytes, documents.all_bytes, tokens, time.monotonic() - began))


def _batches(documents: _Documents) -> Iterator[tuple[int, list[_Piece]]]:
    """Pieces of a MiB or so, each time with the bytes that are done after them."""
    batch: list[_Piece] = []
    room, done = _BATCH_BYTES, 0
    for text in documents.texts:
        for at, piece in _pieces(text):
            batch.append(piece)
            room, done = room - len(piece.content), at
            if room <= 0 or len(batch) == _BATCH_PIECES:
                yield done, batch
                batch, room = [], _BATCH_BYTES
    if batch:
        yield documents.all_bytes or done, batch


def _pieces(text: Text) -> Iterator[tuple[int, _Piece]]:
    """A document in pieces of some MiB, cut between lines or words where possible, each with its end in its file.

    A document without text has none.
    """
    content = text.content
    stream = Stream(io.BytesIO(content), io.BytesIO()) if isinstance(content, bytes) else content
    piece = stream.text.read(_PIECE_BYTES + 1)
    while piece:
        size = _cut(piece[:_PIECE_BYTES]) if len(piece) > _PIECE_BYTES else len(piece)
        yield text.position + stream.file.tell(), _Piece(piece[:size], text.where, size == len(piece))
        piece = piece[size:]
        piece += stream.text.read(_PIECE_BYTES + 1 - len(piece)) if piece else b""


def _encode(tokenizer: Tokenizer, batch: list[_Piece]) -> Tokens:
    if isinstance(tokenizer, FolderTokenizer):
        texts = [_decoded(piece, tokenizer) for piece in batch]
        try:
            encoded = tokenizer.encode_batch(texts)
        except Exception as error:  # a tokenizer without a token for unknown text, for instance
            raise DataError(f"tokenizer {tokenizer.name}: {batch[0].where} or later: {one_line(error)}") from error
    else:
        encoded = [_encode_one(tokenizer, piece) for piece in batch]
    end = np.array([tokenizer.end_of_document])
    return np.concatenate(
        [
            part
            for piece, tokens in zip(batch, encoded, strict=True)
            for part in ((tokens, end) if piece.last else (tokens,))
        ]
    )


def _decoded(piece: _Piece, tokenizer: Tokenizer) -> str:
    try:
        return piece.content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"tokenizer {tokenizer.name}: {piece.where}: {one_line(error)}; use UTF-8") from error


def _encode_one(tokenizer: Tokenizer, piece: _Piece) -> Tokens:
    try:
        encoded = tokenizer.encode(piece.content)
        tokens = np.asarray(encoded)
    except (Exception, SystemExit) as error:
        # A user's tokenizer may raise anything, most likely because a document is not UTF-8: show it to the user.
        raise DataError(f"tokenizer {tokenizer.name}: {piece.where}: {one_line(error)}") from error
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        kind = type(encoded).__name__
        raise DataError(
            f"tokenizer {tokenizer.name}: {piece.where}: encode returned a {kind} that is not a list of token ids"
        )
    return tokens if tokens.size else tokens.astype(np.int64)


def _cut(piece: bytes) -> int:
    """Where to cut a piece that is not the document's last: after a line, else a space, else a UTF-8 character.

    A document that is not UTF-8 may be cut anywhere.
    """
    for mark in (b"\n", b" "):
        if at := piece.rfind(mark) + 1:
            return at
    for back in range(1, _CHARACTER_BYTES + 1):
        byte = piece[-back]
        if byte & 0xC0 != 0x80:  # a character begins here
            whole = back >= next((count for count, least in _FIRST_BYTES if byte >= least), 1)
            return len(piece) if whole else len(piece) - back
    return len(piece)
