"""A learner's shard: which sequences it takes and in which order, with its position as a single number.

A sequence is one of the task's examples, by its number. One seeded permutation for the whole job distributes them over
the shards, so shards never share a sequence however far apart their learners are; a second one, new in every epoch,
gives the order within the shard. Both are computed, so seeking to a position takes no time.

A learner reads the number of shards, and its own index, from its manifest when it starts, and keeps both until it ends.
So when a pool is scaled while the job runs, learners that are running keep the old shards, and new ones divide the same
sequences into more shards: some sequences are then trained on by two learners, until all have been restarted. A learner
that restarts with another number of shards continues in its new shard at the position it had: as far into the order
there as it was in its old one, in the same epoch or, if the new shard is smaller, a later one. For a while some
sequences recur sooner than after an epoch, and some later; none is lost for good.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diloco.learner.data.permutation import Permutation
from diloco.learner.data.source import DataError


@dataclass(frozen=True, slots=True)
class Shard:
    """A learner's part of the data."""

    index: int
    count: int
    """Number of shards: learners in the manifest as this process read it."""
    batch_size: int
    seed: int


class ShardSampler:
    """The numbers of one shard's sequences, without end: each epoch takes every sequence of the shard once."""

    def __init__(self, sequences: int, shard: Shard) -> None:
        """Of the first ``sequences`` of the data, which are those to train on.

        Raises:
            DataError: a shard would have less than one batch.
        """
        self.shard = shard
        if sequences < shard.count * shard.batch_size:
            needed = shard.count * shard.batch_size
            raise DataError(f"the data has {sequences} sequences to train on, but {needed} are needed")
        self._dealt = Permutation(sequences, f"shards {shard.seed}")
        self._size = len(range(shard.index, sequences, shard.count))
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

    def next_numbers(self) -> NDArray[np.int64]:
        """Numbers of the next ``batch_size`` sequences; a batch may span two epochs."""
        numbers = self.sequences(self.position, self.position + self.shard.batch_size)
        self.position += self.shard.batch_size
        return numbers

    def sequences(self, start: int, stop: int) -> NDArray[np.int64]:
        """Numbers of the sequences at positions ``start`` to ``stop``."""
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
