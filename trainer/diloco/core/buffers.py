"""Memory of tensors: as bytes, and used again, as the pages of a new block cost more than the copy into it.

A block is free once nothing refers to the tensor that was lent, to a view of it or to its array. So whoever still
reads it, such as a push that is retried or a checkpoint that is being written, never sees it change.
"""

import weakref
from collections import defaultdict
from typing import Final

import torch
from torch import Tensor

_LEAST_BYTES: Final = 8 << 20
"""The C library reuses smaller blocks well enough (``runtime.process.memory``); among larger ones it leaves gaps."""
_KEPT: Final = 4
"""Free blocks kept of a size: what one fragment takes on its way through a learner."""
_STEPS: Final = 8
"""Sizes from one power of two to the next, so that fragments that differ a little share blocks."""

_free: defaultdict[int, list[Tensor]] = defaultdict(list)


def recycled(count: int, dtype: torch.dtype) -> Tensor:
    """A flat tensor of ``count`` elements with any content, in host memory. May be called by any thread."""
    wanted = count * dtype.itemsize
    if wanted < _LEAST_BYTES:
        return torch.empty(count, dtype=dtype)
    step = (1 << (wanted.bit_length() - 1)) // _STEPS
    size = -(-wanted // step) * step
    # One call each, no lock: a block may come back within any line of any thread.
    try:
        block = _free[size].pop()
    except IndexError:
        block = torch.empty(size, dtype=torch.uint8)
    lent = block.numpy()[:wanted]
    weakref.finalize(lent, _give_back, block).atexit = False
    return torch.from_numpy(lent).view(dtype)


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous host tensor, without a copy; they keep its memory."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _give_back(block: Tensor) -> None:
    free = _free[block.numel()]
    if len(free) < _KEPT:
        free.append(block)
