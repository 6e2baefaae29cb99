"""Leaves out the rows of a corpus that have no usable text, counts them, and names the first of them in the log."""

import logging
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple

from diloco.learner.data.source import DataError

_log = logging.getLogger(__name__)

_NAMED: Final = 10
_FEW: Final = 100
"""So many bad rows do not end the reading before its end: a corpus may begin with them."""


class Stream(NamedTuple):
    """The text of a document that is a file."""

    text: BinaryIO
    file: BinaryIO
    """The file itself, which is compressed if it is not ``text``; its place there measures progress."""


class Text(NamedTuple):
    """One document."""

    content: bytes | Stream
    """Its text; a stream is open until the next document is asked for."""
    where: str
    """Its file, and its row or line there."""
    position: int
    """Bytes of the file up to here, roughly, to measure progress."""


class BadRow(NamedTuple):
    """A row without usable text."""

    where: str
    problem: str


class Rows:
    """Counts the rows of a corpus."""

    def __init__(self, field: str, most: float) -> None:
        """``most``: largest fraction of the rows that may be bad. ``field``: names the corpus, for messages."""
        self._field, self._most = field, most
        self._read = self._bad = 0
        self._first = BadRow("", "")

    def usable(self, rows: Iterable[Text | BadRow]) -> Iterator[Text]:
        """Those of ``rows`` that have text.

        Raises:
            DataError: too many have none.
        """
        for row in rows:
            self._read += 1
            if isinstance(row, Text):
                yield row
            else:
                self._leave_out(row)

    def end(self) -> None:
        """All rows were read: check and tell how many were left out.

        Raises:
            DataError: too many were.
        """
        self._check(self._most * self._read)
        if self._bad:
            _log.warning("%s: left out %d of %d rows, which have no usable text", self._field, self._bad, self._read)

    def _leave_out(self, row: BadRow) -> None:
        self._first = self._first if self._bad else row
        self._bad += 1
        if self._bad <= _NAMED:
            _log.warning("%s: left out %s: %s", self._field, row.where, row.problem)
        self._check(max(self._most * self._read, _FEW if self._most else 0))

    def _check(self, most: float) -> None:
        if self._bad > most:
            share = f"{self._bad} of {self._read} rows have no usable text, but badRows is {self._most:g}"
            raise DataError(f"{self._field}: {self._first.where}: {self._first.problem} ({share})")
