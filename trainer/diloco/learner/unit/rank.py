"""What each process of a learner has: its parts of the model, of its optimizer, and of the fragments as received."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from diloco.core.fragments import Layout
from diloco.learner.data.opening import LearnerData
from diloco.learner.training.devices.host_copies import Copied, HostCopies
from diloco.learner.training.evaluate import Evaluated
from diloco.learner.training.steps import InnerSteps
from diloco.learner.unit.collectives.boxes import OwnBoxes
from diloco.learner.unit.collectives.channels import Channels
from diloco.learner.unit.collectives.exchange import Exchange
from diloco.learner.unit.collectives.world import World
from diloco.model.fragments import trained_parameters
from diloco.model.sharded import kept_parts, part
from diloco.spec import JobSpec

if TYPE_CHECKING:
    from diloco.learner.unit.sharding import Parted  # it loads FSDP, which few learners need


class ModelParts:
    """One process's parts of a model. All processes call each method, with the same arguments, in the same order."""

    def __init__(self, module: nn.Module, layout: Layout, world: Channels) -> None:
        self.module, self.layout, self.world = module, layout, world
        self._parts = {name: part(one).detach() for name, one in trained_parameters(self.module).items()}
        self._boxes = OwnBoxes(layout, trained_parameters(self.module))
        self._exchange = Exchange(self.module, layout, self._boxes.places, world)
        self._copies = HostCopies(world.device)
        received = [self._copies.copy(self._boxes.read(one, self._parts)) for one in range(len(layout.fragments))]
        self._received: list[tuple[Tensor, Copied]] = received
        """This process's values of each fragment as received, flat, in host memory."""

    @torch.no_grad()
    def give(self, fragment: int) -> Tensor | None:
        """In the first process all of a fragment, flat f32 on the device; in the others None."""
        return self._exchange.whole(fragment, self._parts)

    @torch.no_grad()
    def receive(self, fragment: int, values: Tensor | None) -> None:
        """Overwrite a fragment with ``values``, flat f32 in host memory, which the first process has.

        Raises:
            ValueError: they are of another size or type.
        """
        numel, device = self.layout.fragments[fragment].numel, self.world.device
        if values is None:
            flat = torch.empty(numel, device=device)
        elif values.shape != (numel,) or values.dtype != torch.float32:
            raise ValueError(f"fragment {fragment} is {numel} f32 elements, not {values.dtype} {tuple(values.shape)}")
        else:
            flat = values.to(device, non_blocking=True)
        own = self._boxes.taken(fragment, self.world.spread(flat))
        self._boxes.write(fragment, own, self._parts)
        self._received[fragment] = self._copies.copy(own)

    @contextmanager
    def as_received(self) -> Iterator[None]:
        """Inside, the model is as received, without gradients."""
        device = self.world.device
        with torch.no_grad(), kept_parts(self.module, self._parts) as parts:
            for fragment, (values, copied) in enumerate(self._received):
                if copied is not None:
                    torch.cuda.current_stream(device).wait_event(copied)
                self._boxes.write(fragment, values.to(device, non_blocking=True), parts)
            yield


class Rank(ModelParts):
    """One process's parts, and what makes its share of each step."""

    def __init__(self, job: JobSpec, parted: "Parted", layout: Layout, data: LearnerData, world: World) -> None:
        """``data``: the learner's; the same in all processes.

        Raises:
            DataError, OptimizerError, ModelError: see `InnerSteps`.
        """
        batch_size = data.sampler.sampling.batch_size
        self.data, self.inner = data, InnerSteps(job, parted.module, data.task, batch_size, parted.share)
        super().__init__(parted.module, layout, world)

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
