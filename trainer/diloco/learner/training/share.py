"""Which part of a batch a process computes, and sums over all processes of its learner."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

Numbers = NDArray[np.int64]
Compute = Callable[[Tensor], Tensor]
"""Of a stack of matrices, a result for each."""

_STACK_BYTES: Final = 64 << 20
"""Of f32, of matrices that are computed together."""


class Share:
    """All of it: the learner is one process."""

    rank = 0
    """Of those that share out a batch."""
    ranks = 1
    divides_by = 1
    """Gradients are those of the sum of all processes' losses over this."""
    needs_autocast = True
    """To compute in BF16; else the parameters are BF16 in a pass, and nothing else has to be."""

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

    def begin_part(self, *, last: bool) -> None:
        """Before the passes of a part of the batch. ``last``: gradients are summed over the processes after it."""

    def end_parts(self) -> None:
        """After the last backward pass: gradients are the same in all processes, or parts of the same."""

    def total(self, summed: Tensor, count: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        """Losses, their count, and the squared norm of all gradients, summed over the processes in one operation."""
        return torch.stack((summed, count, squares_of(gradients, summed)))

    def each_once(
        self,
        compute: Compute,
        matrices: Sequence[Tensor],
        parameters: Sequence[nn.Parameter],  # noqa: ARG002  # for several processes
        dtype: torch.dtype,  # noqa: ARG002  # as above
    ) -> Iterator[Tensor]:
        """``compute`` of each matrix in one of the processes; this one's parts of the results, in order.

        ``matrices``: its parts, of equal shapes, parted as ``parameters`` are. ``dtype``: of results.
        """
        return in_stacks(compute, matrices)

    def anywhere(self, found: bool) -> bool:  # noqa: FBT001  # its only parameter
        """Whether it was found in any process of the learner: what all then do has to be the same."""
        return found


def in_stacks(compute: Compute, matrices: Sequence[Tensor]) -> Iterator[Tensor]:
    """``compute`` of each, several at once, if they are small."""
    size = stack_size(matrices[0])
    for first in range(0, len(matrices), size):
        yield from compute(torch.stack(list(matrices[first : first + size])))


def stack_size(matrix: Tensor) -> int:
    """How many like this one are computed together."""
    return max(1, _STACK_BYTES // (4 * max(1, matrix.numel())))


def squares_of(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    """The sum of the squares of all their values, a scalar ``like`` that one."""
    return get_total_norm(tensors).square().float() if tensors else torch.zeros_like(like)


WHOLE = Share()
"""Of a learner of one process."""
