"""A learner's shard: which sequences it takes and in which order, with its position as a single number.

The training tokens are cut into sequences. One seeded permutation for the whole job distributes them over the shards,
so shards never share a sequence however far apart their learners are; a second one, new in every epoch, gives the order
within the shard. Both are computed, so seeking to a position takes no time.

A learner reads the number of shards, and its own index, from its manifest when it starts, and keeps both until it ends.
So when a pool is scaled while the job runs, learners that are running keep the old shards, and new ones divide the same
sequences into more shards: some sequences are then trained on by two learners, until all have been restarted. A learner
that restarts with another number of shards continues in its new shard at the position it had: as far into the order
there as it was in its old one, in the same epoch or, if the new shard is smaller, a later one. For a while some
sequences recur sooner than after an epoch, and some later; none is lost for good.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diloco.learner.data.permutation import Permutation
from diloco.learner.data.source import DataError, TokenSource, read_into


@dataclass(frozen=True, slots=True)
class Shard:
    """A learner's part of the data."""

    index: int
    count: int
    """Number of shards: learners in the manifest as this process read it."""
    batch_size: int
    sequence_length: int
    seed: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids, int64, on the CPU, shape (sequences, sequence_length); each target is the token after its input."""

    inputs: Tensor
    targets: Tensor


class ShardSampler:
    """Endless batches of one shard: each epoch takes every sequence of the shard once."""

    def __init__(self, source: TokenSource, training_tokens: int, shard: Shard) -> None:
        """Only the first ``training_tokens`` of ``source`` are ever read.

        Raises:
            DataError: a shard would have less than one batch.
        """
        self._source = source
        self.shard = shard
        # A sequence's last target is the first token of the next one, so the last sequence needs one token more.
        self._sequences = (training_tokens - 1) // shard.sequence_length
        if self._sequences < shard.count * shard.batch_size:
            needed = tokens_to_train(shard)
            raise DataError(f"the data has {training_tokens} tokens to train on, but {needed} are needed")
        self._dealt = Permutation(self._sequences, f"shards {shard.seed}")
        self._size = len(range(shard.index, self._sequences, shard.count))
        self.position = 0
        """Sequences taken so far, over all epochs."""
        self._epoch: tuple[int, Permutation] | None = None

    def seek(self, position: int) -> None:
        """Continue as if ``position`` sequences had been taken.

        Raises:
            ValueError: it is negative.
        """
        if position < 0:
            raise ValueError(f"position is {position}, it must not be negative")
        self.position = position

    def next_batch(self) -> Batch:
        """The next ``batch_size`` sequences; a batch may span two epochs.

        Raises:
            DataError: the data cannot be read.
        """
        indices = self.sequences(self.position, self.position + self.shard.batch_size)
        batch = read_batch(self._source, indices * self.shard.sequence_length, self.shard.sequence_length)
        self.position += self.shard.batch_size
        return batch

    def sequences(self, start: int, stop: int) -> NDArray[np.int64]:
        """Numbers of the sequences at positions ``start`` to ``stop``; number i begins at token i * sequence_length."""
        parts = []
        while start < stop:
            epoch, first = divmod(start, self._size)
            last = min(self._size, first + stop - start)
            place = self._order(epoch)(np.arange(first, last))
            parts.append(self._dealt(place * self.shard.count + self.shard.index))
            start += last - first
        return np.concatenate(parts)

    def _order(self, epoch: int) -> Permutation:
        if self._epoch is None or self._epoch[0] != epoch:
            key = f"order {self.shard.seed} {self.shard.index} {epoch}"
            self._epoch = (epoch, Permutation(self._size, key))
        return self._epoch[1]


def tokens_to_train(shard: Shard) -> int:
    """Training tokens needed to give every shard one batch."""
    return shard.count * shard.batch_size * shard.sequence_length + 1


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
