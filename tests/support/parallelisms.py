"""Functions for `model.parallelize`, valid and invalid ones, and models for them."""

from functools import partial

import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint


class Wide(nn.Module):
    """A language model of one token: two layers between an embedding and the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8, bias=False)
        self.output = nn.Linear(8, 257)

    def forward(self, tokens: Tensor) -> Tensor:
        inside = self.embedding(tokens)
        logits: Tensor = self.output(inside + self.down(self.up(inside).relu()))
        return logits


class UnsteadyInOne(Wide):
    """In evaluation mode, another result each time, in all processes but the first."""

    calls = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += not self.training
        return super().forward(tokens) * (1 + torch.distributed.get_rank() * self.calls)


def recomputed(module: Wide, mesh: DeviceMesh) -> DeviceMesh:
    module.up.forward = partial(checkpoint, module.up.forward, use_reentrant=False)  # type: ignore[method-assign]
    for one in (module.up, module.down, module):
        fully_shard(one, mesh=mesh)
    return mesh


def by_columns(module: Wide, mesh: DeviceMesh) -> DeviceMesh:
    both = init_device_mesh(mesh.device_type, (1, mesh.size()), mesh_dim_names=("copies", "columns"))
    parallelize_module(module, both["columns"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(module, mesh=both["copies"])
    return both["copies"]


def without_mesh(module: Wide, mesh: DeviceMesh) -> None:
    fully_shard(module, mesh=mesh)


def plain(_: Wide, mesh: DeviceMesh) -> DeviceMesh:
    return mesh


def raising(_: Wide, __: DeviceMesh) -> DeviceMesh:
    raise RuntimeError("no such device")


def renaming(module: Wide, mesh: DeviceMesh) -> DeviceMesh:
    module.up = nn.Sequential(module.up)  # type: ignore[assignment]
    fully_shard(module, mesh=mesh)
    return mesh
