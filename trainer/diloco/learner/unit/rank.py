"""What each process of a learner has: its parts of the model, of its optimizer, and of the fragments as received."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from diloco.core.fragments import Layout
from diloco.learner.data.opening import LearnerData
from diloco.learner.training.evaluate import Evaluated
from diloco.learner.training.steps import InnerSteps
from diloco.learner.unit.channels import Channels
from diloco.learner.unit.sharding import Parted
from diloco.learner.unit.world import World
from diloco.model.fragments import slot_values, trained_parameters
from diloco.model.sharded import part, part_of, swapped_parts
from diloco.spec import JobSpec


class ModelParts:
    """One process's parts of a model. All processes call each method, with the same arguments, in the same order."""

    def __init__(self, module: nn.Module, layout: Layout, world: Channels) -> None:
        self.module, self.layout, self.world = module, layout, world
        self._received = {
            name: part(one).detach().to("cpu", copy=True) for name, one in trained_parameters(self.module).items()
        }

    @torch.no_grad()
    def give(self, fragment: int) -> None:
        """In the others: give the first process, which reads it, all of a fragment."""
        for _ in slot_values(self.module, self.layout.fragments[fragment]):
            pass

    @torch.no_grad()
    def receive(self, fragment: int, values: Tensor | None) -> None:
        """Overwrite a fragment with ``values``, flat f32 in host memory, which the first process has."""
        device = self.world.device
        for slot in self.layout.fragments[fragment].slots:
            parameter, piece = self.module.get_parameter(slot.tensor.name), slot.tensor
            given = torch.empty(piece.shape, device=device)
            if values is not None:
                given.copy_(values[slot.offset : slot.offset + piece.numel].view(piece.shape))
            self.world.spread(given)
            if given.shape == parameter.shape:
                own, mine = part_of(given, parameter), None
            else:
                rows = slice(piece.first_row, piece.first_row + piece.shape[0])
                full = torch.empty(parameter.shape, device=device)
                inside = torch.zeros(parameter.shape, dtype=torch.bool, device=device)
                full[rows], inside[rows] = given, True
                own, mine = part_of(full, parameter), part_of(inside, parameter)
            for target in (part(parameter), self._received[piece.name]):
                target.copy_(own if mine is None else torch.where(mine, own, target.to(device)))

    @contextmanager
    def as_received(self) -> Iterator[None]:
        """Inside, the model is as received, without gradients."""
        with torch.no_grad(), swapped_parts(self.module, self._received):
            yield


class Rank(ModelParts):
    """One process's parts, and what makes its share of each step."""

    world: World

    def __init__(self, job: JobSpec, parted: Parted, layout: Layout, data: LearnerData, world: World) -> None:
        """``data``: the learner's; the same in all processes.

        Raises:
            DataError, OptimizerError, ModelError: see `InnerSteps`.
        """
        super().__init__(parted.module, layout, world)
        self.data = data
        batch_size = data.sampler.sampling.batch_size
        self.inner = InnerSteps(job, parted.module, data.task, batch_size, parted.share)

    def start_over(self) -> None:
        """Drop the inner optimizer's state."""
        self.inner.start_over()

    def evaluate(self) -> Evaluated:
        """Means over the held-out examples, of the model as received.

        Raises:
            DataError, ModelError: see `InnerSteps.evaluate`.
        """
        with self.as_received():
            return self.inner.evaluate(self.data.holdout.batches(), {})
