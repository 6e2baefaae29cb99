"""Tensors of which each process of a learner has a part (torch's ``DTensor``).

Every process calls each of these functions, in the same order. A tensor that is not parted is the same in all of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

from torch import Tensor, nn

T = TypeVar("T", bound=Tensor)
_IN_BF16: Final[WeakSet[nn.Module]] = WeakSet()


def keep_in_bf16(module: nn.Module) -> None:
    """Note that ``module`` gathers its parameters in BF16 only, whatever computes with them."""
    _IN_BF16.add(module)


def is_in_bf16(module: nn.Module) -> bool:
    """Whether that was noted."""
    return module in _IN_BF16


class Place(NamedTuple):
    """Where in a whole tensor the part of a process lies."""

    first: tuple[int, ...]
    """Index of its first element, in each dimension."""
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    """Shape of the whole tensor."""
    how: str = ""
    """How it was parted, if the part is no box of the whole. It fits only where this is the same."""

    @property
    def parted(self) -> bool:
        """Whether there is more of the tensor than this."""
        return self.shape != self.whole or bool(self.how)


def place_of(tensor: Tensor) -> Place:
    """Where this process's part of ``tensor`` lies."""
    shape = tuple(part(tensor).shape)
    if not is_parted(tensor):
        return Place((0,) * len(shape), shape, shape)
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415  # see part_of
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: PLC0415

    parted: Any = tensor
    mesh, placements = parted.device_mesh, parted.placements
    if all(type(one) in (Replicate, Shard) for one in placements):
        _, first = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        return Place(tuple(first), shape, tuple(tensor.shape))
    how = f"{placements} at {mesh.get_coordinate()} of {tuple(mesh.shape)}, {tuple(tensor.shape)}"
    return Place((0,) * len(shape), shape, shape, how)


def is_parted(tensor: Tensor) -> bool:
    """Whether this process has only its part of ``tensor``."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor."""
    return tensor.full_tensor() if is_parted(tensor) else tensor  # type: ignore[attr-defined]


def part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor; writing to it writes to the tensor."""
    return tensor.to_local() if is_parted(tensor) else tensor  # type: ignore[attr-defined]


def gradient_part(parameter: nn.Parameter) -> Tensor:
    """What this process has of a parameter's gradient, which is parted as the parameter is."""
    gradient: Any = parameter.grad
    if is_parted(parameter) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]  # a DTensor
        gradient = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]  # as above
    return part(gradient)


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
def kept_parts(module: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """This process's parts of parameters, by name, which may be overwritten inside; they are restored afterwards."""
    own = {name: part(module.get_parameter(name)).detach() for name in names}
    kept = {name: one.clone() for name, one in own.items()}
    try:
        yield own
    finally:
        for name, one in own.items():
            one.copy_(kept[name])


@contextmanager
def swapped_parts(module: nn.Module, parts: Mapping[str, Tensor]) -> Iterator[None]:
    """Give this process's parts of parameters other values inside."""
    with kept_parts(module, parts) as own:
        for name, one in own.items():
            one.copy_(parts[name])
        yield
