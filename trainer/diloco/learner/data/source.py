"""The interface between training and data: a long sequence of token ids that can be read at any position."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from diloco.runtime.files import is_machine_error

Tokens = NDArray[np.integer[Any]]


class DataError(ValueError):
    """The data cannot be used; one line that names the field or file, what was found and what is needed."""


class DataUnavailableError(DataError):
    """The data cannot be read at the moment, for instance because of an I/O error: trying again may help."""


class DataStoppedError(RuntimeError):
    """This process was asked to stop before its data was ready."""


def unreadable(what: str, error: OSError) -> DataError:
    """The error to raise when the system cannot read the data; ``what`` names the field and the file."""
    kind = DataUnavailableError if is_machine_error(error) else DataError
    return kind(f"{what}: {error.strerror or error}")


@runtime_checkable
class TokenSource(Protocol):
    """Read-only tokens. The same in every process of a job and after a restart, because positions refer to them.

    ``data.documentMask`` needs an attribute ``end_of_document`` besides: the id of the token that ends each document.
    """

    @property
    def vocabulary_size(self) -> int:
        """Every token id is below this."""
        ...

    def __len__(self) -> int:
        """Number of tokens."""
        ...

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens ``start`` to ``stop``, shape (stop - start,), any integer type."""
        ...


def end_of_document(source: TokenSource) -> object:
    """The id of the token that ends each document, if the source says it, in ``end_of_document``."""
    return getattr(source, "end_of_document", None)


def read_into(source: TokenSource, start: int, out: NDArray[np.int64]) -> None:
    """Fill ``out`` with the tokens from ``start`` on, and check them: a wrong id would only fail later, on the device.

    Raises:
        DataError: the source returned another number of tokens, no integers, or ids outside its vocabulary.
    """
    read_unchecked(source, start, out)
    check_ids(source, start, out)


def read_unchecked(source: TokenSource, start: int, out: NDArray[np.int64]) -> None:
    """The same for a caller that checks the ids itself, of several at once.

    Raises:
        DataError: the source returned another number of tokens, or no integers.
    """
    tokens = np.asarray(source.read(start, start + len(out)))
    if tokens.shape != out.shape or tokens.dtype.kind not in "iu":
        what = f"tokens of shape {tokens.shape} and type {tokens.dtype}"
        raise DataError(f"the data's read({start}, {start + len(out)}) returned {what}")
    out[:] = tokens


def check_ids(source: TokenSource, start: int, tokens: NDArray[np.int64]) -> None:
    """Check that ``tokens``, those from ``start`` on, are ids of the source's vocabulary.

    Raises:
        DataError: one is not.
    """
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= source.vocabulary_size:
        wrong = lowest if lowest < 0 else highest
        raise DataError(f"the data has token id {wrong} near token {start}, but ids 0 to {source.vocabulary_size - 1}")
