"""The end of the data, which no learner trains on, and the fixed sequences of it that evaluate the global model."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from diloco.learner.data.source import DataError
from diloco.learner.data.task import JobTask


class Holdout:
    """The same sequences every time and for every learner, spread evenly over those that are held out."""

    def __init__(self, start: int, total: int, batch_size: int, wanted: int) -> None:
        """Sequences ``start`` to ``total`` are held out. ``wanted``: how many to read; all, if there are fewer.

        Raises:
            DataError: none is held out.
        """
        there = total - start
        if there < 1:
            raise DataError("the data has no held-out sequence, but 1 is needed")
        count = min(wanted, there)
        self._numbers = start + np.arange(count, dtype=np.int64) * there // count
        self._batch_size = batch_size

    @property
    def sequences(self) -> int:
        """Sequences an evaluation reads."""
        return len(self._numbers)

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """The numbers of each of the evaluation's batches; the last may be smaller."""
        for first in range(0, len(self._numbers), self._batch_size):
            yield self._numbers[first : first + self._batch_size]


def training_sequences(total: int, holdout_fraction: float) -> int:
    """How many of ``total`` sequences, from the first on, may be trained on."""
    return total - math.ceil(total * holdout_fraction)


def check_size(task: JobTask, batch_size: int, holdout_fraction: float) -> None:
    """Check that the task has enough examples for a batch and the evaluation.

    Raises:
        DataError: it has not; the text names its field, the number available and the number needed.
    """
    total = len(task)
    train = training_sequences(total, holdout_fraction)
    if batch_size <= train < total:
        return
    needed = math.ceil(batch_size / (1 - holdout_fraction))
    raise DataError(
        f"{task.field}: has {total} {task.examples}, at least {needed} are needed for a batch of {batch_size} and a "
        f"holdout of {holdout_fraction:g}"
    )
