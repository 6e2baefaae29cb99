"""Pieces of what a learner was dealt: which of its counts are which positions."""

from collections.abc import Iterable
from typing import NamedTuple


class Piece(NamedTuple):
    """A learner's counts ``first`` .. ``first + length - 1`` are the positions from ``start`` on."""

    first: int
    start: int
    length: int

    @property
    def end(self) -> int:
        """The count after its last."""
        return self.first + self.length

    @property
    def stop(self) -> int:
        """The position after its last."""
        return self.start + self.length

    def within(self, first: int, end: int) -> "Piece":
        """Its part from count ``first`` to ``end``; of length 0 or less if there is none."""
        low = max(first, self.first)
        return Piece(low, self.start + low - self.first, min(end, self.end) - low)


def parts_of(pieces: Iterable[Piece], first: int, end: int) -> list[Piece]:
    """The parts of ``pieces`` from count ``first`` to ``end``."""
    if first >= end:
        return []
    return [piece.within(first, end) for piece in pieces if piece.first < end and first < piece.first + piece.length]


def extend(pieces: list[Piece], piece: Piece) -> None:
    """Add ``piece`` to the end of ``pieces``, as a part of the last one if it goes on with it."""
    if pieces and (pieces[-1].end, pieces[-1].stop) == piece[:2]:
        last = pieces[-1]
        pieces[-1] = Piece(last.first, last.start, last.length + piece.length)
    else:
        pieces.append(piece)
