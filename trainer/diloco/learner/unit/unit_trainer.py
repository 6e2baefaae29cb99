"""The trainer in the first process of a learner: it tells the others each call before it makes it.

The inner loop is a trainer's only user, on one thread. So all processes make the same calls in the same order, and a
fragment is swapped in at the same step in each.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from diloco.core.fragments import Fragment
from diloco.learner.training.capture import Capture, Reader
from diloco.learner.training.devices.host_copies import Copied
from diloco.learner.training.fragment_trainer import NOTHING, FragmentTrainer, TrainerState
from diloco.learner.training.trainer import Batches, InnerTrainer
from diloco.learner.unit.checkpoints import OtherRanks
from diloco.learner.unit.orders import Op, Order
from diloco.learner.unit.rank import ModelParts, Rank
from diloco.model.fragments import trained_parameters
from diloco.spec import JobSpec


class UnitReader(Reader):
    """Copies fragments, whole, from all processes to the host of the first."""

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts.module, parts.world.device)
        self._parts = parts

    def read(self, fragment: Fragment) -> tuple[Tensor, Copied]:
        """See `Reader`."""
        values = self._parts.give(fragment.index)
        assert values is not None, "this process is the first"
        return (values, None) if self._copies.at_once else self._copies.copy(values)


class UnitTrainer(InnerTrainer):
    """Has the fragments whole, as received, and one part of the model that is trained."""

    def __init__(self, job: JobSpec, source: nn.Module, rank: Rank) -> None:
        """``source``: the whole model on the CPU, whose values ``rank`` has got."""
        FragmentTrainer.__init__(self, source, rank.layout, torch.device("cpu"))
        self.device = rank.world.device
        self._module = rank.module
        self._parameters = trained_parameters(rank.module)
        self._reader = UnitReader(rank)
        self._rank, self._world = rank, rank.world
        self._begin(job, rank.data, rank.inner)
        self.others = OtherRanks(self.others.places, rank.world)

    def _begin_step(self, batches: Batches, began: int, progress: float) -> None:
        told = [one for one in batches if one is not None]
        self._world.tell(Order(Op.STEP, began, len(told) - 1, progress))
        self._world.share(torch.from_numpy(np.stack(told)))
        super()._begin_step(batches, began, progress)

    def capture(self, fragment: int) -> Capture:
        """See `FragmentTrainer`."""
        self._world.tell(Order(Op.CAPTURE, fragment))
        return super().capture(fragment)

    def _write(self, fragment: int, values: Tensor) -> None:
        self._world.tell(Order(Op.APPLY, fragment))
        self._rank.receive(fragment, values)

    def evaluate(self, replaced: Mapping[int, Tensor] = NOTHING) -> float:
        """See `FragmentTrainer`; nothing can be replaced."""
        assert not replaced
        self._world.tell(Order(Op.EVALUATE))
        loss, self.metrics = self._rank.evaluate()
        return loss

    def start_over(self) -> None:
        """See `FragmentTrainer`."""
        self._world.tell(Order(Op.START_OVER))
        super().start_over()

    def state(self) -> TrainerState:
        """See `FragmentTrainer`; a checkpoint has to be written next, as the others do that."""
        self._world.tell(Order(Op.SAVE))
        return super().state()

    def end(self) -> None:
        """Have the other processes end."""
        self._world.tell(Order(Op.END))
