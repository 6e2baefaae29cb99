"""Tensors of which each process of a learner has a part (torch's ``DTensor``).

Every process calls each of these functions, in the same order. A tensor that is not parted is the same in all of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

T = TypeVar("T", bound=Tensor)


def is_parted(tensor: Tensor) -> bool:
    """Whether this process has only its part of ``tensor``."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor."""
    return tensor.full_tensor() if is_parted(tensor) else tensor  # type: ignore[attr-defined]


def part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor; writing to it writes to the tensor."""
    return tensor.to_local() if is_parted(tensor) else tensor  # type: ignore[attr-defined]


def part_of(values: Tensor, like: Tensor) -> Tensor:
    """This process's part of ``values``, if they are parted as ``like`` is: whole, on its device, the same in all."""
    if not is_parted(like):
        return values
    from torch.distributed.tensor import DTensor, Replicate  # noqa: PLC0415  # slow, and only for learners of several

    parted: Any = like
    everywhere = DTensor.from_local(values, parted.device_mesh, [Replicate()] * parted.device_mesh.ndim)
    made: Any = everywhere.redistribute(placements=parted.placements)
    return made.to_local()  # type: ignore[no-any-return]


def by_mesh(tensors: Iterable[T]) -> list[list[T]]:
    """Tensors that are parted among the same processes, or none, together."""
    found: dict[object, list[T]] = {}
    for one in tensors:
        found.setdefault(getattr(one, "device_mesh", None), []).append(one)
    return list(found.values())


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
