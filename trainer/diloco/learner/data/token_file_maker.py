"""Makes a token file from plain files, for ``diloco tokens``, in bounded memory whatever the length of a document."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from diloco.learner.data.opening import open_text
from diloco.learner.data.source import DataError, Tokens
from diloco.learner.data.text import Document, read_bytes
from diloco.learner.data.tokenfile import TokenFileInfo, write_token_file
from diloco.learner.data.tokenizer import ByteTokenizer, Tokenizer
from diloco.model.entrypoint import one_line
from diloco.spec.training import TextData

_PIECE_BYTES = 4 << 20
_CHARACTER_BYTES = 4
"""Bytes of the longest UTF-8 character."""
_FIRST_BYTES = ((4, 0xF0), (3, 0xE0), (2, 0xC0))
"""Length in bytes of a character, and the lowest value of its first byte."""


def make_token_file(text: TextData, output: Path, tokenizer: Tokenizer | None = None) -> TokenFileInfo:
    """Write the documents of ``text`` as tokens to ``output``; by default one token per byte, as ``data.text`` does.

    Raises:
        DataError: the text, the tokenizer or ``output`` cannot be used; one line that names it.
    """
    chosen = ByteTokenizer() if tokenizer is None else tokenizer
    documents = open_text(text).documents
    try:
        return write_token_file(output, _tokens(documents, chosen), chosen.vocabulary_size, chosen.name)
    except OSError as error:
        raise DataError(f"{output}: cannot be written ({error.strerror or error})") from error


def _tokens(documents: tuple[Document, ...], tokenizer: Tokenizer) -> Iterator[Tokens]:
    for document in documents:
        for piece in _pieces(document):
            yield _encode(tokenizer, piece, document)
        yield np.array([tokenizer.end_of_document])


def _encode(tokenizer: Tokenizer, piece: bytes, document: Document) -> Tokens:
    try:
        encoded = tokenizer.encode(piece)
        tokens = np.asarray(encoded)
    except (Exception, SystemExit) as error:
        # A user's tokenizer may raise anything, most likely because a document is not UTF-8: show it to the user.
        raise DataError(f"tokenizer {tokenizer.name}: {document.path}: {one_line(error)}") from error
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        kind = type(encoded).__name__
        raise DataError(
            f"tokenizer {tokenizer.name}: {document.path}: encode returned a {kind} that is not a list of token ids"
        )
    return tokens


def _pieces(document: Document) -> Iterator[bytes]:
    """The document in pieces of some MiB, cut between lines or words where possible."""
    start = 0
    while start < document.size_bytes:
        piece = read_bytes(document, start, min(_PIECE_BYTES, document.size_bytes - start)).tobytes()
        if start + len(piece) < document.size_bytes:
            piece = piece[: _cut(piece)]
        start += len(piece)
        yield piece


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
