"""Tensors of which each process of a learner has a part (torch's ``DTensor``).

Every process calls each of these functions, in the same order. A tensor that is not parted is the same in all of them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def is_parted(tensor: Tensor) -> bool:
    """Whether this process has only its part of ``tensor``."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor."""
    return tensor.full_tensor() if is_parted(tensor) else tensor  # type: ignore[attr-defined]


def part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor; writing to it writes to the tensor."""
    return tensor.to_local() if is_parted(tensor) else tensor  # type: ignore[attr-defined]


def part_of(values: Tensor, like: Tensor, source: int | None = None) -> Tensor:
    """This process's part of ``values``, whole and on its device, if they are parted as ``like`` is.

    ``source``: 0: those of the first process are meant, and others give any of that shape; None: all have the same.
    """
    if not is_parted(like):
        if source is not None:
            torch.distributed.broadcast(values, source)
        return values
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415  # slow, and only for learners of several

    parted: Any = like
    made: Any = distribute_tensor(values, parted.device_mesh, parted.placements, src_data_rank=source)
    return made.to_local()  # type: ignore[no-any-return]


@contextmanager
def swapped_parts(module: nn.Module, parts: Mapping[str, Tensor]) -> Iterator[None]:
    """Give this process's parts of parameters other values inside."""
    own = {name: part(module.get_parameter(name)).detach() for name in parts}
    kept = {name: one.clone() for name, one in own.items()}
    try:
        for name, one in own.items():
            one.copy_(parts[name])
        yield
    finally:
        for name, one in own.items():
            one.copy_(kept[name])
