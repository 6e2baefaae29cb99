"""The processes of one learner, connected. The first, rank 0, is the learner itself."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # it is there, and documented
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from diloco.learner.training.devices.memory import memory_bytes
from diloco.learner.unit.collectives.channels import Channels

NO_LIMIT: Final = timedelta(days=365)
"""The first process may wait for the syncer for as long as a region is cut off. What hangs is found by stuckSeconds."""


class World(Channels):
    """This process's connections to the others of its learner."""

    def __init__(self, store: Store, rank: int, ranks: int, device: torch.device) -> None:
        """Wait for all, and connect. On CUDA ``device`` is the current one, which torch's collectives use.

        Raises:
            RuntimeError: another one ended meanwhile.
        """
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=ranks, timeout=NO_LIMIT
        )
        super().__init__(rank, ranks, device, _host_group(), _host_group())
        self.mesh: DeviceMesh = init_device_mesh(device.type, (ranks,))

    def by_node(self, nodes: int) -> DeviceMesh:
        """All processes in two dimensions: nodes, and those of each. All call it, and each call makes groups."""
        return init_device_mesh(self.device.type, (nodes, self.ranks // nodes), mesh_dim_names=("nodes", "processes"))

    def memory_bytes(self) -> int:
        """All that this process may use of its device's memory."""
        limit = memory_bytes(self.device)
        return limit // self.ranks if self.device.type == "cpu" else limit

    def spread(self, tensor: Tensor) -> Tensor:
        """See `Channels`."""
        dist.broadcast(tensor, 0)
        return tensor

    def collect(self, given: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """See `Channels`."""
        return collected(given, counts, self.rank)

    def leave(self) -> None:
        """Close the connections."""
        dist.destroy_process_group()


def collected(given: Tensor, counts: Sequence[int], rank: int) -> list[Tensor]:
    """See `Channels.collect`; by the default group."""
    if rank:
        _exchange([dist.P2POp(dist.isend, given, 0)] if counts[rank] else [])
        return []
    every = [given, *(given.new_empty(count) for count in counts[1:])]
    _exchange([dist.P2POp(dist.irecv, one, rank) for rank, one in enumerate(every) if rank and len(one)])
    return every


def _exchange(operations: list[dist.P2POp]) -> None:
    for one in dist.batch_isend_irecv(operations) if operations else ():
        one.wait()


def _host_group() -> dist.ProcessGroup:
    """All processes, for tensors in host memory."""
    made = dist.new_group(backend="gloo", timeout=NO_LIMIT)
    assert isinstance(made, dist.ProcessGroup), "this process is in it"
    return made
