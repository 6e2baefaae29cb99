"""One process of a learner of many, whose collectives do nothing but are counted: results mean nothing, sizes do."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from diloco.learner.unit.collectives.world import World

_WHAT: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "c10d::_allgather_base_": ("gathered", 0),
        "c10d::allgather_": ("gathered", 0),
        "c10d::_reduce_scatter_base_": ("reduced", 1),
        "c10d::allreduce_": ("all-reduced", 0),
        "c10d::broadcast_": ("broadcast", 0),
        "c10d::alltoall_base_": ("exchanged", 0),
        "c10d::alltoall_": ("exchanged", 0),
        "_c10d_functional::all_gather_into_tensor": ("gathered", -1),
        "_c10d_functional::reduce_scatter_tensor": ("reduced", 0),
        "_c10d_functional::all_reduce": ("all-reduced", 0),
    }
)
"""By an operation's name: what it does, and which of its arguments has all that is moved; -1: its result."""
HOST_READ: Final = "aten::_local_scalar_dense"


class FakeWorld(World):
    """The first of ``ranks`` processes, without the others."""

    def __init__(self, ranks: int, device: torch.device, memory_bytes: int) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        self.rank, self.ranks, self.device, self._memory_bytes = 0, ranks, device, memory_bytes
        control = dist.new_group()
        assert isinstance(control, dist.ProcessGroup), "this process is in it"
        self._control = self._saving = control
        self.mesh = init_device_mesh(device.type, (ranks,))

    def by_node(self, nodes: int) -> DeviceMesh:
        """Of real tensors, whatever the others are."""
        with unset_fake_temporarily():
            return super().by_node(nodes)

    def memory_bytes(self) -> int:
        """As given."""
        return self._memory_bytes

    def least(self, number: int) -> int:
        """Its own."""
        return number


@contextmanager
def fake_world(ranks: int, device: torch.device, memory_bytes: int = 80 * 10**9) -> Iterator[FakeWorld]:
    """Connected inside. ``memory_bytes``: of the device."""
    world = FakeWorld(ranks, device, memory_bytes)
    try:
        yield world
    finally:
        world.leave()


class Counted(TorchDispatchMode):
    """Counts inside what collectives move, and how often the host reads a value of a device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.moved: dict[str, list[int]] = {}
        """Bytes of each collective, by what it does."""
        self.calls: Counter[str] = Counter()
        """Of every operation."""

    def reset(self) -> None:
        """Count from here on."""
        self.moved.clear()
        self.calls.clear()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count, and do it. A fake tensor's values are 1."""
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented  # the operations on parts come here
        if func.name() == HOST_READ and isinstance(args[0], FakeTensor):
            self.calls[HOST_READ] += 1
            return 1.0 if args[0].is_floating_point() else 1
        result = func(*args, **(kwargs or {}))
        name = func.name().partition(".")[0]
        self.calls[name] += 1
        if name in _WHAT:
            what, place = _WHAT[name]
            self.moved.setdefault(what, []).append(_bytes(result if place < 0 else args[place]))
        return result

    @property
    def host_reads(self) -> int:
        """How often the host has waited for a value."""
        return self.calls[HOST_READ]


def _bytes(tensors: Any) -> int:
    if isinstance(tensors, Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(_bytes, tensors))
