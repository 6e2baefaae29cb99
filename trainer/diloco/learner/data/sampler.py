"""The job's one order of sequences, of which each learner takes what it is dealt.

Position p of the order is a sequence of epoch p // N, where N is the number of training sequences. A seeded
permutation, new in every epoch, says which; as it is computed, going to a position takes no time. The syncer deals them
(`diloco.core.dealing`). Without a syncer a sampler takes all positions, one after the other.
"""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diloco.core.dealing.dealer import MOST_CLAIMS
from diloco.core.dealing.pieces import Piece, extend, parts_of

Supply = Callable[[int, int], int]
"""Without a syncer: from a count and a number of sequences, the first position to take."""
_BLOCK: Final = 1024


@dataclass(frozen=True, slots=True)
class Sampling:
    """How sequences are taken."""

    batch_size: int
    seed: int


class Hand:
    """What the syncer has dealt to this process: the loop puts pieces in, the training thread takes sequences out.

    Pieces are by count. A piece that begins after a gap replaces what is left of those before.
    """

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


class DealtSampler:
    """Numbers of the sequences (a task's examples) that were dealt to a learner."""

    def __init__(self, sequences: int, sampling: Sampling, hand: Hand | None = None) -> None:
        """``sequences``: N, at least a batch. ``hand``: what the syncer deals."""
        self.sampling = sampling
        self.sequences = sequences
        """N."""
        self.hand = hand or Hand()
        self.supply: Supply | None = None if hand else lambda first, _: first
        self.began = 0
        """First position of the latest batch."""
        self._block = ((-1, -1), np.empty(0, np.int64))

    @property
    def position(self) -> int:
        """Sequences taken so far, over all epochs: this learner's count."""
        return self.hand.position

    def seek(self, position: int) -> None:
        """Continue as if ``position`` sequences had been taken.

        Raises:
            ValueError: it is negative.
        """
        if position < 0:
            raise ValueError(f"position is {position}, it must not be negative")
        self.hand.position = position

    def has_batch(self) -> bool:
        """Whether the next batch has been dealt."""
        return self.supply is not None or self.hand.has(self.sampling.batch_size)

    def next_numbers(self, needed: int | None = None) -> NDArray[np.int64]:
        """Numbers of the next ``batch_size`` sequences, which were dealt; a batch may span epochs.

        ``needed``: what was dealt before this count is forgotten.
        """
        at, count = self.hand.position, self.sampling.batch_size
        if self.supply is not None:
            self.hand.put(Piece(at, self.supply(at, count), count))
        taken = self.hand.take(count, at if needed is None else needed)
        self.began = taken[0][0]
        return np.concatenate([self.numbers(start, stop) for start, stop in taken])

    def following(self) -> NDArray[np.int64] | None:
        """What `next_numbers` will return, unless the rest of what was dealt is replaced; None: it is not dealt yet."""
        at, count = self.hand.position, self.sampling.batch_size
        if self.supply is not None:
            first = self.supply(at, count)
            return self.numbers(first, first + count)
        parts = self.hand.following(count)
        return None if parts is None else np.concatenate([self.numbers(start, stop) for start, stop in parts])

    def numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Numbers of the sequences at positions ``start`` to ``stop`` of the order."""
        parts = []
        while start < stop:
            epoch, first = divmod(start, self.sequences)
            block, within = divmod(first, _BLOCK)
            parts.append(self._numbers_of(epoch, block)[within : within + stop - start])
            start += len(parts[-1])
        return np.concatenate(parts)

    def _numbers_of(self, epoch: int, block: int) -> NDArray[np.int64]:
        """Of positions of an epoch. Kept, because a permutation of a few positions takes as long as one of a block."""
        if self._block[0] != (epoch, block):
            positions = np.arange(block * _BLOCK, min(self.sequences, (block + 1) * _BLOCK))
            order = Permutation(self.sequences, f"order {self.sampling.seed} {epoch}")
            self._block = ((epoch, block), order(positions))
        return self._block[1]


_ROUNDS = 6
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # SplitMix64's multipliers


class Permutation:
    """A bijection of 0 .. count - 1, determined by ``key`` (any text). It is computed, so memory is no limit.

    A Feistel network on 2b bits is a bijection whatever its round function. A result of ``count`` or more is encrypted
    again until it is below ``count`` (cycle walking), at most four times on average.
    """

    def __init__(self, count: int, key: str) -> None:
        if count < 1:
            raise ValueError(f"count is {count}, it must be at least 1")
        self._count = np.uint64(count)
        self._half_bits = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, dtype="<u8")

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The image of each of ``positions`` (each in 0 .. count - 1), same shape."""
        values = self._encrypt(positions.astype(np.uint64))
        outside = values >= self._count
        while outside.any():
            values[outside] = self._encrypt(values[outside])
            outside = values >= self._count
        return values.astype(np.int64)

    def _encrypt(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half_bits, values & self._mask
        for key in self._keys:
            mixed = right ^ key
            for multiplier in _MIX:
                mixed = (mixed ^ (mixed >> np.uint64(29))) * multiplier
            left, right = right, left ^ ((mixed >> np.uint64(32)) & self._mask)
        encrypted: NDArray[np.uint64] = (left << self._half_bits) | right
        return encrypted
