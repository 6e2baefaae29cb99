"""The processes of one learner, connected. The first, rank 0, is the learner itself."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # it is there, and documented
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from diloco.learner.training.memory import memory_of
from diloco.learner.unit.orders import NUMBERS, Order, decoded

NO_LIMIT: Final = timedelta(days=365)
"""The first process may wait for the syncer for as long as a region is cut off. What hangs is found by stuckSeconds."""


class World:
    """This process's connections to the others of its learner."""

    def __init__(self, store: Store, rank: int, ranks: int, device: torch.device) -> None:
        """Wait for all, and connect.

        Raises:
            RuntimeError: another one ended meanwhile.
        """
        self.rank, self.ranks, self.device = rank, ranks, device
        if device.type == "cuda":  # torch's collectives use the current one
            torch.cuda.set_device(device.index or 0)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=ranks, timeout=NO_LIMIT
        )
        self._control, self._saving = _host_group(), _host_group()
        self.mesh: DeviceMesh = init_device_mesh(device.type, (ranks,))

    def by_node(self, nodes: int) -> DeviceMesh:
        """All processes in two dimensions: nodes, and those of each. All call it, and each call makes groups."""
        return init_device_mesh(self.device.type, (nodes, self.ranks // nodes), mesh_dim_names=("nodes", "processes"))

    def memory_bytes(self) -> int:
        """All that this process may use of its device's memory."""
        limit = memory_of(self.device).limit_bytes
        return limit // self.ranks if self.device.type == "cpu" else limit

    def tell(self, order: Order) -> None:
        """From the first process: tell the others what it does next."""
        self.share(torch.tensor(order.encoded()))

    def hear(self) -> Order:
        """In the others: wait for what to do next.

        Raises:
            OrderError: the first process has another version.
            RuntimeError: it has ended.
        """
        numbers = torch.zeros(NUMBERS, dtype=torch.int64)
        self.share(numbers)
        return decoded(numbers.tolist())

    def share(self, tensor: Tensor) -> None:
        """Overwrite a tensor in host memory, of one shape and type in all processes, with that of the first."""
        dist.broadcast(tensor, 0, group=self._control)

    def share_list(self, numbers: Sequence[int] = (), *, saving: bool = False) -> list[int]:
        """The first process's ``numbers``, in all. ``saving``: among the threads that write checkpoints."""
        group = self._saving if saving else self._control
        size = torch.tensor([len(numbers)])
        dist.broadcast(size, 0, group=group)
        shared = torch.tensor(numbers, dtype=torch.int64) if self.rank == 0 else torch.empty(*size, dtype=torch.int64)
        dist.broadcast(shared, 0, group=group)
        return shared.tolist()

    def all_saved(self, numbers: Sequence[int]) -> list[list[int]]:
        """The ``numbers``, equally many, of all processes' threads that write checkpoints, by rank."""
        own = torch.tensor(numbers, dtype=torch.int64)
        every = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(every, own, group=self._saving)
        return [one.tolist() for one in every]

    def all_have(self, numbers: Sequence[int]) -> list[list[int]]:
        """The ``numbers``, equally many, of all processes, by rank."""
        own = torch.tensor(numbers, dtype=torch.int64)
        every = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(every, own, group=self._control)
        return [one.tolist() for one in every]

    def least(self, number: int) -> int:
        """The least ``number`` of all processes."""
        least = torch.tensor([number])
        dist.all_reduce(least, dist.ReduceOp.MIN, group=self._control)
        return int(least)

    def spread(self, tensor: Tensor) -> Tensor:
        """The same with a tensor on the device, which is contiguous; returns it."""
        dist.broadcast(tensor, 0)
        return tensor

    def collect(self, given: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """In the first process what each has ``given``, flat, on the device, by rank; in the others nothing.

        ``counts``: the elements of each.
        """
        if self.rank:
            self._exchange([dist.P2POp(dist.isend, given, 0)] if counts[self.rank] else [])
            return []
        every = [given, *(given.new_empty(count) for count in counts[1:])]
        self._exchange([dist.P2POp(dist.irecv, one, rank) for rank, one in enumerate(every) if rank and len(one)])
        return every

    @staticmethod
    def _exchange(operations: list[dist.P2POp]) -> None:
        for one in dist.batch_isend_irecv(operations) if operations else ():
            one.wait()

    def leave(self) -> None:
        """Close the connections."""
        dist.destroy_process_group()


def _host_group() -> dist.ProcessGroup:
    """All processes, for tensors in host memory."""
    made = dist.new_group(backend="gloo", timeout=NO_LIMIT)
    assert isinstance(made, dist.ProcessGroup), "this process is in it"
    return made
