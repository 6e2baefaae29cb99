"""Turns a document's bytes into token ids when a token file is made. Training itself uses no tokenizer."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from diloco.learner.data.source import DataError, Tokens
from diloco.learner.data.text import END_OF_DOCUMENT, VOCABULARY_SIZE
from diloco.model.entrypoint import EntrypointError, call_entrypoint


@runtime_checkable
class Tokenizer(Protocol):
    """What an entrypoint for ``diloco tokens`` returns."""

    @property
    def name(self) -> str:
        """Name that is written into the token file."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Every token id is below this."""
        ...

    @property
    def end_of_document(self) -> int:
        """The id that is put after each document."""
        ...

    def encode(self, piece: bytes) -> Sequence[int] | Tokens:
        """Token ids of a document or of a piece of a long one. A piece ends after a line or, without any, a word."""
        ...


class ByteTokenizer:
    """One token per byte, as with ``data.text``."""

    name = "bytes"
    vocabulary_size = VOCABULARY_SIZE
    end_of_document = END_OF_DOCUMENT

    def encode(self, piece: bytes) -> NDArray[np.uint8]:
        """The bytes themselves."""
        return np.frombuffer(piece, dtype=np.uint8)


def open_tokenizer(entrypoint: str) -> Tokenizer:
    """The tokenizer that ``package.module:factory`` returns, called without arguments.

    Raises:
        DataError: it cannot be loaded, or is not a tokenizer.
    """
    try:
        made = call_entrypoint(entrypoint, {}, "tokenizer")
    except EntrypointError as error:
        raise DataError(str(error)) from error
    if not isinstance(made, Tokenizer):
        raise DataError(
            f"tokenizer: {entrypoint} returned a {type(made).__name__} without name, vocabulary_size, end_of_document "
            "and encode"
        )
    for field, kind in (("name", str), ("vocabulary_size", int), ("end_of_document", int)):
        value = getattr(made, field)
        if not isinstance(value, kind):
            raise DataError(f"tokenizer: {entrypoint}: {field} is {value!r}; use a value of type {kind.__name__}")
    return made
