"""The job's one order of sequences, of which each learner takes what it is dealt.

Position p of the order is a sequence of epoch p // N, where N is the number of training sequences. A seeded
permutation, new in every epoch, says which; as it is computed, going to a position takes no time. The syncer deals them
(`diloco.core.dealing`). Without a syncer a sampler takes all positions, one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diloco.core.dealing.dealer import Piece
from diloco.learner.data.permutation import Permutation
from diloco.learner.data.source import DataError, TokenSource, read_into
from diloco.learner.mailboxes.hand import Hand

Supply = Callable[[int, int], int]
"""Without a syncer: from a count and a number of sequences, the first position to take."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How sequences are cut and taken."""

    batch_size: int
    sequence_length: int
    seed: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids, int64, on the CPU, shape (sequences, sequence_length); each target is the token after its input."""

    inputs: Tensor
    targets: Tensor


class DealtSampler:
    """Batches of the sequences that were dealt to a learner."""

    def __init__(self, source: TokenSource, training_tokens: int, sampling: Sampling, hand: Hand | None = None) -> None:
        """Only the first ``training_tokens`` of ``source`` are ever read. ``hand``: what the syncer deals.

        Raises:
            DataError: there is less than one batch.
        """
        self._source = source
        self.sampling = sampling
        # A sequence's last target is the first token of the next one, so the last sequence needs one token more.
        self.sequences = (training_tokens - 1) // sampling.sequence_length
        """N."""
        if self.sequences < sampling.batch_size:
            needed = tokens_to_train(sampling)
            raise DataError(f"the data has {training_tokens} tokens to train on, but {needed} are needed")
        self.hand = hand or Hand()
        self.supply: Supply | None = None if hand else lambda first, _: first
        self.began = 0
        """First position of the latest batch."""
        self._epoch: tuple[int, Permutation] | None = None

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

    def has(self, count: int) -> bool:
        """Whether the next ``count`` sequences have been dealt."""
        return self.supply is not None or self.hand.has(count)

    def next_batch(self, needed: int | None = None) -> Batch:
        """The next ``batch_size`` sequences, which were dealt; a batch may span epochs.

        ``needed``: what was dealt before this count is forgotten.

        Raises:
            DataError: the data cannot be read.
        """
        numbers = self.next_numbers(self.sampling.batch_size, needed)
        return read_batch(self._source, numbers * self.sampling.sequence_length, self.sampling.sequence_length)

    def next_numbers(self, count: int, needed: int | None = None) -> NDArray[np.int64]:
        """Numbers of the next ``count`` sequences; number i begins at token i * sequence_length."""
        at = self.hand.position
        if self.supply is not None:
            self.hand.put(Piece(at, self.supply(at, count), count))
        taken = self.hand.take(count, at if needed is None else needed)
        self.began = taken[0][0]
        return np.concatenate([self.numbers(start, stop) for start, stop in taken])

    def numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Numbers of the sequences at positions ``start`` to ``stop`` of the order."""
        parts = []
        while start < stop:
            epoch, first = divmod(start, self.sequences)
            last = min(self.sequences, first + stop - start)
            parts.append(self._order(epoch)(np.arange(first, last)))
            start += last - first
        return np.concatenate(parts)

    def _order(self, epoch: int) -> Permutation:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, Permutation(self.sequences, f"order {self.sampling.seed} {epoch}"))
        return self._epoch[1]


def tokens_to_train(sampling: Sampling) -> int:
    """Training tokens needed for one batch."""
    return sampling.batch_size * sampling.sequence_length + 1


def read_batch(source: TokenSource, starts: NDArray[np.int64], length: int) -> Batch:
    """The sequences of ``length`` tokens that begin at ``starts``, with their targets.

    Raises:
        DataError: the data cannot be read.
    """
    tokens = np.empty((len(starts), length + 1), dtype=np.int64)
    for row, start in zip(tokens, starts, strict=True):
        read_into(source, int(start), row)
    whole = torch.from_numpy(tokens)
    return Batch(whole[:, :-1].contiguous(), whole[:, 1:].contiguous())
