"""The processes of one learner, connected. The first, rank 0, is the learner itself."""

from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]  # it is there, and documented
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from diloco.learner.unit.channels import Channels

NO_LIMIT: Final = timedelta(days=365)
"""The first process may wait for the syncer for as long as a region is cut off. What hangs is found by stuckSeconds."""


class World(Channels):
    """This process's connections to the others of its learner."""

    def __init__(self, store: Store, rank: int, ranks: int, device: torch.device) -> None:
        """Wait for all, and connect.

        Raises:
            RuntimeError: another one ended meanwhile.
        """
        if device.type == "cuda":  # torch's collectives use the current one
            torch.cuda.set_device(device.index or 0)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=ranks, timeout=NO_LIMIT
        )
        super().__init__(rank, ranks, device, _host_group(), _host_group())
        self.mesh: DeviceMesh = init_device_mesh(device.type, (ranks,))

    def spread(self, tensor: Tensor) -> Tensor:
        """See `Channels`."""
        dist.broadcast(tensor, 0)
        return tensor

    def leave(self) -> None:
        """Close the connections."""
        dist.destroy_process_group()


def _host_group() -> dist.ProcessGroup:
    """All processes, for tensors in host memory."""
    made = dist.new_group(backend="gloo", timeout=NO_LIMIT)
    assert isinstance(made, dist.ProcessGroup), "this process is in it"
    return made
