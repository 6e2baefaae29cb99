"""Turns a document's bytes into token ids when a token file is made. Training itself uses no tokenizer."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from diloco.learner.data.source import DataError, Tokens
from diloco.learner.data.text import END_OF_DOCUMENT, VOCABULARY_SIZE
from diloco.model.entrypoint import EntrypointError, call_entrypoint, one_line
from diloco.runtime.file_kind import problem_of_pointer
from diloco.runtime.files import UnusableFileError, read_json
from diloco.spec.base import ENTRYPOINT
from diloco.spec.training import DocumentsData

_ENDS: Final = (
    ("tokenizer_config.json", "eos_token"),
    ("special_tokens_map.json", "eos_token"),
    ("generation_config.json", "eos_token_id"),
    ("config.json", "eos_token_id"),
)
"""Files of a tokenizer's folder that may say what ends a document, a text or the first of several ids."""


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


class FolderTokenizer:
    """The tokenizer of a folder in Hugging Face's format. It adds no special tokens but the end of each document."""

    def __init__(self, folder: Path, field: str) -> None:
        """``field`` is the folder's place, for messages.

        Raises:
            DataError: a package is missing, or the folder has no tokenizer with an end of document.
        """
        try:
            import tokenizers  # noqa: PLC0415  # an optional package
        except ImportError as error:
            raise DataError(f"{field}: needs the package tokenizers; run pip install '.[data]' in a clone") from error
        path = folder / "tokenizer.json"
        try:
            content = path.read_bytes()
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(content)
        except FileNotFoundError as error:
            save = "make it with transformers' AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)"
            raise DataError(f"{field}: {folder} has no tokenizer.json; {save}") from error
        except Exception as error:  # the library may raise anything for a wrong file: show it to the user in one line
            problem = problem_of_pointer(content) or f"is not a tokenizer ({one_line(error)})"
            raise DataError(f"{field}: {path} {problem}") from error
        # A file may say to cut each document after some hundred tokens, or to pad it.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.name = f"tokenizer.json {hashlib.sha256(content).hexdigest()[:16]}"
        # A control token's name in a document is text, and the token itself ends documents only.
        self._tokenizer.encode_special_tokens = True
        self.end_of_document = self._end_of_document(folder, field)
        added = self._tokenizer.get_added_tokens_decoder()
        if self.end_of_document in added:
            self._tokenizer.add_special_tokens([added[self.end_of_document].content])
        unused = {number for number, token in added.items() if token.special and number != self.end_of_document}
        known = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocabulary_size = 1 + max(set(known) - unused, default=0)

    def encode(self, piece: bytes) -> list[int]:
        """Token ids of a piece, which is UTF-8."""
        return [int(token) for token in self.encode_batch([piece.decode()])[0]]

    def encode_batch(self, pieces: Sequence[str]) -> list[Tokens]:
        """Token ids of each piece, by all processors."""
        return [
            np.array(one.ids, np.uint32) for one in self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        ]

    def _end_of_document(self, folder: Path, field: str) -> int:
        found: object = None
        try:
            for name, key in _ENDS:
                value = _read_object(folder / name).get(key)
                value = value.get("content") if isinstance(value, dict) else value
                found = value[0] if isinstance(value, list) and value else value
                if found not in (None, []):
                    break
        except UnusableFileError as error:
            raise DataError(f"{field}: {error}") from error
        end = self._tokenizer.token_to_id(found) if isinstance(found, str) else found
        if type(end) is int and self._tokenizer.id_to_token(end) is not None:
            return end
        what = "no end of document" if found in (None, []) else f"the end of document {found} is not in its vocabulary"
        raise DataError(f"{field}: {folder}: {what}; name one as eos_token in tokenizer_config.json")


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    value = read_json(path) if path.exists() else None
    return value if isinstance(value, dict) else {}


def tokenizer_of(documents: DocumentsData, field: str) -> Tokenizer:
    """The tokenizer that ``documents``, which are at ``field``, name.

    Raises:
        DataError: it cannot be used.
    """
    folder = documents.tokenizer
    return ByteTokenizer() if folder is None else FolderTokenizer(Path(folder), f"{field}.tokenizer")


def open_tokenizer(named: str) -> Tokenizer:
    """The tokenizer of a folder, or what ``package.module:factory`` returns, called without arguments.

    Raises:
        DataError: it cannot be loaded, or is not a tokenizer.
    """
    if not re.match(ENTRYPOINT, named) or Path(named).is_dir():
        return FolderTokenizer(Path(named), "tokenizer")
    try:
        made = call_entrypoint(named, {}, "tokenizer")
    except EntrypointError as error:
        raise DataError(str(error)) from error
    if not isinstance(made, Tokenizer):
        raise DataError(
            f"tokenizer: {named} returned a {type(made).__name__} without name, vocabulary_size, end_of_document "
            "and encode"
        )
    for field, kind in (("name", str), ("vocabulary_size", int), ("end_of_document", int)):
        value = getattr(made, field)
        if not isinstance(value, kind):
            raise DataError(f"tokenizer: {named}: {field} is {value!r}; use a value of type {kind.__name__}")
    return made
