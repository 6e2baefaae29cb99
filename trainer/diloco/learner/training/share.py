"""Which part of a batch a process computes, and sums over all processes of its learner."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.int64]


class Share:
    """All of it: the learner is one process."""

    rank = 0
    """Of those that share out a batch."""
    ranks = 1

    def of(self, numbers: Numbers) -> Numbers:
        """This process's examples of a batch, whose size is a multiple of the processes."""
        each = len(numbers) // self.ranks
        return numbers[self.rank * each : (self.rank + 1) * each]

    def in_turn(self, batches: Iterable[Numbers]) -> Iterator[tuple[Numbers, bool]]:
        """Whole batches in turn, as many for each process, and whether one counts.

        One for which none is left gets the last again, because every process has to make every forward pass.
        """
        given = list(batches)
        for first in range(0, len(given), self.ranks):
            place = first + self.rank
            yield given[min(place, len(given) - 1)], place < len(given)

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        return values

    def anywhere(self, found: bool) -> bool:  # noqa: FBT001  # its only parameter
        """Whether it was found in any process of the learner: what all then do has to be the same."""
        return found


WHOLE = Share()
"""Of a learner of one process."""
