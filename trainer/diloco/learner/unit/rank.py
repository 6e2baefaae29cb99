"""What each process of a learner has: its parts of the model, of its optimizer, and of the fragments as received."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from diloco.core.fragments import Layout
from diloco.learner.data.task import JobTask
from diloco.learner.training.evaluate import Evaluated
from diloco.learner.training.share import Numbers
from diloco.learner.training.steps import InnerSteps
from diloco.learner.unit.sharding import parted_model
from diloco.learner.unit.world import World
from diloco.model.fragments import slot_values, trained_parameters
from diloco.model.sharded import part, part_of, swapped_parts
from diloco.spec import JobSpec
from diloco.spec.placement import Pool


class Rank:
    """One process's part. All processes call each method, with the same arguments, in the same order."""

    def __init__(
        self, spec: JobSpec, pool: Pool, layout: Layout, task: JobTask, world: World, source: nn.Module | None
    ) -> None:
        """``source``: in the first process, the whole model on the CPU; the others get its values.

        Raises:
            ModelError, DataError, OptimizerError: see `parted_model` and `InnerSteps`.
        """
        self.module, share = parted_model(spec, pool, world, source)
        self.inner = InnerSteps(spec, self.module, task, pool.largest_batch(spec.training), world.device, share)
        self._layout, self._world = layout, world
        self._received = {
            name: part(one).detach().to("cpu", copy=True) for name, one in trained_parameters(self.module).items()
        }

    def give(self, fragment: int) -> None:
        """In the others: give the first process, which reads it, all of a fragment."""
        for _ in slot_values(self.module, self._layout.fragments[fragment]):
            pass

    @torch.no_grad()
    def receive(self, fragment: int, values: Tensor | None) -> None:
        """Overwrite a fragment with ``values``, flat f32 in host memory, which the first process has."""
        device = self._world.device
        for slot in self._layout.fragments[fragment].slots:
            parameter, piece = self.module.get_parameter(slot.tensor.name), slot.tensor
            rows = slice(piece.first_row, piece.first_row + piece.shape[0]) if piece.shape else ...
            full = torch.empty(parameter.shape, device=device)
            if values is not None:
                full[rows] = values[slot.offset : slot.offset + piece.numel].view(piece.shape).to(device)
            inside = torch.zeros(parameter.shape, dtype=torch.bool, device=device)
            inside[rows] = True
            own, mine = part_of(full, parameter, 0), part_of(inside, parameter)
            for target in (part(parameter), self._received[piece.name]):
                target.copy_(torch.where(mine, own, target.to(device)))

    def evaluate(self, batches: Iterable[Numbers]) -> Evaluated:
        """Means over the examples of ``batches``, of the model as received.

        Raises:
            DataError, ModelError: see `InnerSteps.evaluate`.
        """
        with torch.no_grad(), swapped_parts(self.module, self._received):
            return self.inner.evaluate(batches, {})
