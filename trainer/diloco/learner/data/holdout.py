"""The end of the data, which no learner trains on, and the fixed sequences of it that evaluate the global model."""

import math
from collections.abc import Iterator

import numpy as np

from diloco.learner.data.sampler import Batch, Sampling, read_batch, tokens_to_train
from diloco.learner.data.source import DataError, TokenSource


class Holdout:
    """The same sequences every time and for every learner, spread evenly over the held-out tokens."""

    def __init__(self, source: TokenSource, start: int, sampling: Sampling, sequences: int) -> None:
        """``start``: first held-out token. ``sequences``: how many to read, or all of them if there are fewer.

        Raises:
            DataError: less than one sequence is held out.
        """
        self._source = source
        self._length = sampling.sequence_length
        self._batch_size = sampling.batch_size
        there = (len(source) - start - 1) // self._length
        if there < 1:
            held = len(source) - start
            raise DataError(f"the data has {held} held-out tokens, but {self._length + 1} are needed")
        count = min(sequences, there)
        self._starts = start + np.arange(count, dtype=np.int64) * there // count * self._length

    @property
    def sequences(self) -> int:
        """Sequences an evaluation reads."""
        return len(self._starts)

    def batches(self) -> Iterator[Batch]:
        """The evaluation's batches; the last may be smaller.

        Raises:
            DataError: the data cannot be read.
        """
        for first in range(0, len(self._starts), self._batch_size):
            yield read_batch(self._source, self._starts[first : first + self._batch_size], self._length)


def training_tokens(total: int, holdout_fraction: float) -> int:
    """How many of ``total`` tokens, from the first on, may be trained on."""
    return total - math.floor(total * holdout_fraction)


def check_size(total: int, sampling: Sampling, holdout_fraction: float, field: str) -> None:
    """Check that ``total`` tokens are enough for a batch and the evaluation.

    Raises:
        DataError: they are not; the text names ``field``, the number available and the number needed.
    """
    train = training_tokens(total, holdout_fraction)
    if train >= tokens_to_train(sampling) and total - train > sampling.sequence_length:
        return
    needed = max(
        math.ceil(tokens_to_train(sampling) / (1 - holdout_fraction)),
        math.ceil((sampling.sequence_length + 1) / holdout_fraction),
    )
    raise DataError(
        f"{field}: has {total} tokens, at least {needed} are needed for a batch of {sampling.batch_size} "
        f"sequences of {sampling.sequence_length} and a holdout of {holdout_fraction:g}"
    )
