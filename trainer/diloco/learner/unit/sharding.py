"""Parts a model among the processes of a learner."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from diloco.learner.training.devices.device import computes_in_bf16
from diloco.learner.training.share import Share
from diloco.learner.unit.collectives.group_share import GroupShare
from diloco.learner.unit.collectives.world import World
from diloco.model import ModelError
from diloco.model.blocks import blocks_of
from diloco.model.build import blank_model, build_model
from diloco.model.entrypoint import EntrypointError, load_entrypoint, one_line
from diloco.model.fragments import trained_parameters
from diloco.model.probe import put_in_training
from diloco.model.sharded import is_parted, keep_in_bf16, part, part_of
from diloco.spec import JobSpec
from diloco.spec.placement import Pool

_FIELD: Final = "model.parallelize"


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
    own = spec.model.parallelize is not None
    copies = pool.parallelism == "DDP" and not own
    bf16 = not copies and not own and computes_in_bf16(spec.training.precision, world.device)
    module = build_model(spec, values=False) if copies else _without_values(spec)
    names = list(trained_parameters(module))
    mesh = world.mesh
    if own:
        mesh = _own(module, spec, world)
    elif not copies:
        _part(module, world, _mesh_of(pool, world), bf16=bf16)
    _check(module, names, parted=not copies and world.ranks > 1)
    if (batch := pool.batch_of(spec.training)) % mesh.size():
        raise ModelError(
            f"{_FIELD}: {spec.model.parallelize} shares out a batch among {mesh.size()} processes, and batchSize "
            f"{batch} is no multiple of that; change either"
        )
    if any(one.is_meta for one in module.parameters()):
        module.to_empty(device=world.device)
    module.to(world.device)
    put_in_training(module)
    _fill(module, source, world)
    for one in module.modules():
        if isinstance(one, FSDPModule):
            module.register_forward_hook(_reshard)
            break
    if bf16:
        keep_in_bf16(module)
    # The user's code may mix types, and compute losses, as autocast lets it; ours does not.
    autocast = not bf16 or spec.has_own_code or spec.model.entrypoint is not None
    return Parted(module, GroupShare(module, mesh, world, copies=copies, autocast=autocast))


def _without_values(spec: JobSpec) -> nn.Module:
    """The model on the meta device, unless it holds tensors that could not be filled there."""
    module = blank_model(spec)
    hidden = (one for part_ in module.modules() for one in vars(part_).values() if isinstance(one, Tensor))
    return build_model(spec) if any(one.is_meta for one in hidden) else module


def _mesh_of(pool: Pool, world: World) -> DeviceMesh:
    """The processes that have the model together; in a first dimension, those that have the same parts."""
    if pool.parallelism == "FSDP":
        return world.mesh
    if world.ranks == pool.nodes_per_learner:  # on a machine with fewer devices than the manifest has
        raise ModelError(
            "regions[].pools[].parallelism: HSDP needs several processes on each node, and there is one; "
            "use processesPerNode, or FSDP"
        )
    return world.by_node(pool.nodes_per_learner)


def _part(module: nn.Module, world: World, mesh: DeviceMesh, *, bf16: bool) -> None:
    """Part ``module`` by torch's FSDP. ``bf16``: what passes compute in."""
    _check_hooks(module)
    if world.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        raise ModelError(
            f"regions[].pools[].parallelism: FSDP on a CPU needs a newer torch than {torch.__version__}; use DDP"
        )
    # Gathered in half of the bytes, and nothing whole is kept from one pass to the other, as autocast's copies are.
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
    try:
        for one in (*blocks_of(module), module):
            fully_shard(one, mesh=mesh, mp_policy=policy)
            # In newer torch; with an older one all processes must use the same parameters in a step.
            if set_unused := getattr(one, "set_reduce_scatter_unused_params", None):
                set_unused(True)
    except (ValueError, NotImplementedError, AssertionError) as error:
        raise ModelError(
            f"model: torch cannot part it among processes: {one_line(error)}; change it, use processesPerNode 1, or "
            f"{_FIELD}"
        ) from error


def _check_hooks(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:  # noqa: SLF001  # no public name
            raise ModelError(
                f"model: {name} has a hook for its gradient, which is lost in a learner of several processes; remove it"
            )


def _own(module: nn.Module, spec: JobSpec, world: World) -> DeviceMesh:
    """Part ``module`` by the user's function; returns the mesh whose processes share out a batch."""
    _check_hooks(module)
    function = spec.model.parallelize
    assert function is not None, "there is one"
    try:
        made = load_entrypoint(function, _FIELD)(module, world.mesh)
    except EntrypointError as error:
        raise ModelError(str(error)) from error
    except (Exception, SystemExit) as error:  # a user's function may raise anything: show it to the user
        raise ModelError(f"{_FIELD}: {function} raised {one_line(error)}") from error
    if not isinstance(made, DeviceMesh) or made.ndim != 1:
        raise ModelError(
            f"{_FIELD}: {function} returned a {type(made).__name__}, not the DeviceMesh of one dimension whose "
            "processes share out a batch"
        )
    return made


def _check(module: nn.Module, names: list[str], *, parted: bool) -> None:
    """Check that trained parameters have kept their ``names``, and that all are ``parted``."""
    trained = trained_parameters(module)
    if list(trained) != names:
        raise ModelError(f"{_FIELD}: renames parameters; keep the model's names")
    for name, parameter in trained.items():
        if parted and not is_parted(parameter):
            raise ModelError(f"{_FIELD}: {name} is not a DTensor; make every trained parameter one")


@torch.no_grad()
def _fill(module: nn.Module, source: nn.Module | None, world: World) -> None:
    """Give parameters and buffers the values of the first process's ``source``, tensor by tensor."""
    given = {} if source is None else dict(_tensors(source))
    for name, one in _tensors(module):
        values = torch.empty(one.shape, dtype=one.dtype, device=world.device)
        if given:
            values.copy_(given[name])
        part(one).copy_(part_of(world.spread(values), one))


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
