"""Parts a model among the processes of a learner."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from diloco.learner.training.share import Share
from diloco.learner.unit.world import World
from diloco.model import ModelError
from diloco.model.build import blank_model, build_model
from diloco.model.entrypoint import EntrypointError, call_entrypoint
from diloco.model.fragments import trained_parameters
from diloco.model.sharded import is_parted, part, part_of
from diloco.spec import JobSpec
from diloco.spec.placement import Pool


class GroupShare(Share):
    """The rows of a batch that this process has in ``mesh``, of one dimension."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.rank, self.ranks = mesh.get_local_rank(), mesh.size()
        self._group = mesh.get_group()

    def summed(self, values: Tensor) -> Tensor:
        """See `Share`."""
        torch.distributed.all_reduce(values, group=self._group)
        return values


class Parted(NamedTuple):
    """A model of which each process has its parts."""

    module: nn.Module
    share: Share
    """Of a batch."""


def parted_model(spec: JobSpec, pool: Pool, world: World, source: nn.Module | None) -> Parted:
    """The job's model, parted, with the values of ``source``: in the first process the whole model on the CPU.

    Raises:
        ModelError: it cannot be built or parted.
    """
    module = _without_values(spec)
    mesh = _parallelized(module, spec, pool, world)
    for name, parameter in trained_parameters(module).items():
        if world.ranks > 1 and not is_parted(parameter):
            raise ModelError(f"model.parallelize: {name} is not a DTensor; make every trained parameter one")
    if any(one.is_meta for one in module.parameters()):
        module.to_empty(device=world.device)
    module.to(world.device).train()
    _fill(module, source, world)
    for one in module.modules():
        if isinstance(one, FSDPModule):
            module.register_forward_hook(_reshard)
            break
    return Parted(module, GroupShare(mesh))


def _without_values(spec: JobSpec) -> nn.Module:
    """The model on the meta device, unless it holds tensors that could not be filled there."""
    module = blank_model(spec)
    hidden = (one for part_ in module.modules() for one in vars(part_).values() if isinstance(one, Tensor))
    return build_model(spec) if any(one.is_meta for one in hidden) else module


def _parallelized(module: nn.Module, spec: JobSpec, pool: Pool, world: World) -> DeviceMesh:
    """Part ``module``; returns the mesh whose processes share out a batch."""
    field = "model.parallelize"
    if spec.model.parallelize is not None:
        try:
            made = call_entrypoint(spec.model.parallelize, {"module": module, "mesh": world.mesh}, field)
        except EntrypointError as error:
            raise ModelError(str(error)) from error
        if not isinstance(made, DeviceMesh) or made.ndim != 1:
            raise ModelError(
                f"{field}: {spec.model.parallelize} returned a {type(made).__name__}, not the DeviceMesh of one "
                "dimension whose processes share out a batch"
            )
        return made
    # Each process its own group of one: whole copies, whose gradients are averaged.
    mesh = world.mesh
    if pool.parallelism == "DDP":
        mesh = init_device_mesh(world.device.type, (world.ranks, 1), mesh_dim_names=("copies", "parts"))
    lists = [one for one in module.modules() if isinstance(one, nn.ModuleList)]
    for block in max(lists, key=len, default=()):
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return world.mesh


@torch.no_grad()
def _fill(module: nn.Module, source: nn.Module | None, world: World) -> None:
    """Give parameters and buffers the values of the first process's ``source``, tensor by tensor."""
    given = {} if source is None else dict(_tensors(source))
    for name, one in _tensors(module):
        values = given[name].to(world.device) if given else torch.empty(one.shape, dtype=one.dtype, device=world.device)
        part(one).copy_(part_of(values.contiguous(), one, 0))


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _reshard(module: nn.Module, _: object, __: object) -> None:
    """After a forward pass alone, drop the parameters that FSDP keeps whole for the backward pass.

    Else the next pass would compute with these, whatever was written to the parts meanwhile.
    """
    if not torch.is_grad_enabled():
        for one in module.modules():
            if isinstance(one, FSDPModule):
                one.reshard()
