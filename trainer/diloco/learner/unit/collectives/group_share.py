"""A process's share of a learner's batch, and the sums over all of its processes."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from diloco.learner.training.optimizers.muon import emulates_bf16
from diloco.learner.training.share import Compute, Share, in_stacks, squares_of
from diloco.learner.unit.collectives.matrices import of_any, of_copies, of_rows, rows_of
from diloco.learner.unit.collectives.reducer import Reducer
from diloco.learner.unit.collectives.world import World
from diloco.model.fragments import trained_parameters
from diloco.model.sharded import is_parted, part

_WHOLE_GRADIENTS: Final = 0.4
"""Of a device's memory: what gradients may take between the passes of a step's parts, so that they are summed once."""
_F32_BYTES: Final = 4


class GroupShare(Share):
    """The rows of a batch that this process has in ``mesh``, of one dimension."""

    def __init__(self, module: nn.Module, mesh: DeviceMesh, world: World, *, copies: bool, autocast: bool) -> None:
        """``copies``: each process has the whole of ``module``, and nothing else sums its gradients.

        ``autocast``: see ``needs_autocast``.
        """
        self.rank, self.ranks = mesh.get_local_rank(), mesh.size()
        self.divides_by = 1 if copies else self.ranks
        self.needs_autocast = autocast
        self._group, self._world = mesh.get_group(), world
        self._reducer = Reducer(module.parameters(), self._group) if copies else None
        self._parted = [one for one in module.modules() if isinstance(one, FSDPModule)]
        numel = sum(one.numel() for one in trained_parameters(module).values())
        most = _WHOLE_GRADIENTS * world.memory_bytes()
        self._sums_once = bool(world.least(int(_F32_BYTES * numel <= most)))
        self._last = True
        self._sends_bf16 = bool(world.least(int(not emulates_bf16(world.device))))
        """Whether each process computes matrices in BF16: hosts may differ."""
        self._computed = 0
        """Matrices that processes have computed in turn."""

    def summed(self, values: Tensor) -> Tensor:
        """See `Share`."""
        total = values.detach().clone()
        torch.distributed.all_reduce(total, group=self._group)
        return total

    def begin_part(self, *, last: bool) -> None:
        """See `Share`. What FSDP parts is whole until the last part, if the device has the memory for it."""
        if self._reducer is not None:
            self._reducer.enabled = last
        if last == self._last:
            return
        self._last = last
        for one in self._parted:
            if self._sums_once:
                one.set_requires_gradient_sync(last, recurse=False)
            else:
                one.set_requires_all_reduce(last, recurse=False)

    def end_parts(self) -> None:
        """See `Share`."""
        if self._reducer is not None:
            self._reducer.finish()

    def total(self, summed: Tensor, count: Tensor, gradients: Sequence[Tensor]) -> Tensor:
        """See `Share`."""
        squares = torch.zeros_like(summed)
        shares: dict[float, list[Tensor]] = {}
        for gradient in gradients:
            own, once = _once(gradient, self._world.ranks)
            shares.setdefault(once, []).append(own)
        for once, those in shares.items():
            squares += once * squares_of(those, summed)
        # Several processes may have the same rows.
        rows = self.ranks / self._world.ranks
        total = torch.stack((rows * summed, rows * count, squares))
        torch.distributed.all_reduce(total)
        return total

    def each_once(
        self, compute: Compute, matrices: Sequence[Tensor], parameters: Sequence[nn.Parameter], dtype: torch.dtype
    ) -> Iterator[Tensor]:
        """See `Share`."""
        like, dtype = parameters[0], dtype if self._sends_bf16 else torch.float32
        if not is_parted(like):
            return of_copies(compute, matrices, dtype, self._group, self.ranks)
        rows = rows_of(like)
        if rows is None:
            return of_any(compute, matrices, parameters)
        if like.dim() > 2:  # a part of a stack has whole matrices
            return in_stacks(compute, matrices) if matrices[0].numel() else iter(matrices)
        offset, self._computed = self._computed, self._computed + len(matrices)
        return of_rows(compute, matrices, dtype, rows, offset)

    def anywhere(self, found: bool) -> bool:  # noqa: FBT001  # its only parameter
        """See `Share`."""
        count = torch.tensor(int(found), device=self._world.device)
        torch.distributed.all_reduce(count)
        return bool(count)


def _once(gradient: Tensor, ranks: int) -> tuple[Tensor, float]:
    """What this process has of a gradient, and the weight with which a sum over all ``ranks`` has each value once."""
    if not is_parted(gradient):
        return gradient, 1 / ranks
    from torch.distributed.tensor import Replicate  # noqa: PLC0415  # see diloco.model.sharded

    parted: Any = gradient
    if any(one.is_partial() for one in parted.placements):
        parted = parted.redistribute(placements=[Replicate() if one.is_partial() else one for one in parted.placements])
    mesh, copies = parted.device_mesh, ranks // parted.device_mesh.size()
    for dimension, placement in enumerate(parted.placements):
        if isinstance(placement, Replicate):
            copies *= mesh.size(dimension)
    return part(parted), 1 / copies
