"""What the syncer has dealt to this process: the link puts pieces in, the inner loop takes sequences out."""

import threading
from collections.abc import Callable

from diloco.core.dealing.dealer import MOST_CLAIMS
from diloco.core.dealing.pieces import Piece, extend, parts_of


class Hand:
    """Pieces by count. A piece that begins after a gap replaces what is left of those before."""

    def __init__(self, notify: Callable[[], object] = lambda: None) -> None:
        """``notify`` is called for every piece."""
        self._notify = notify
        self._lock = threading.Lock()
        self._pieces: list[Piece] = []
        self.position = 0
        """Count of the next sequence."""

    def put(self, piece: Piece) -> None:
        """Add what was dealt. Duplicates are dropped."""
        with self._lock:
            last = self._pieces[-1] if self._pieces else None
            if last is None or last.end <= piece.first:
                extend(self._pieces, piece)
        self._notify()

    def jump(self) -> bool:
        """Go on behind a gap, if there is one; then steps before it must not reach the syncer."""
        with self._lock:
            self._pieces = self._tail()
            jumps = bool(self._pieces) and self.position < self._pieces[0].first
            if jumps:
                self.position = self._pieces[0].first
            return jumps

    def has(self, count: int) -> bool:
        """Whether it has the next ``count`` positions."""
        return self.following(count) is not None

    def following(self, count: int) -> list[tuple[int, int]] | None:
        """The next ``count`` positions, as ranges (start, stop), which it keeps; None: it has not so many."""
        with self._lock:
            parts = self._next(count)
        return [(part.start, part.stop) for part in parts] if sum(part.length for part in parts) == count else None

    def take(self, count: int, needed: int) -> list[tuple[int, int]]:
        """The next ``count`` positions, as ranges (start, stop). What is before count ``needed`` is forgotten."""
        with self._lock:
            taken = self._next(count)
            self.position += count
            self._pieces = parts_of(self._pieces, needed, self._pieces[-1].end)
            return [(part.start, part.stop) for part in taken]

    def claims(self) -> tuple[Piece, ...]:
        """The pieces to join with."""
        with self._lock:
            return tuple(self._tail()[-MOST_CLAIMS:])

    def _next(self, count: int) -> list[Piece]:
        return parts_of(self._pieces, self.position, self.position + count)

    def _tail(self) -> list[Piece]:
        """The pieces without those before the last gap."""
        pieces = self._pieces
        after = [at for at in range(1, len(pieces)) if pieces[at - 1].end < pieces[at].first]
        return pieces[after[-1] :] if after else pieces
