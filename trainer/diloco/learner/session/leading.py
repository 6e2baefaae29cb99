"""A loop's session in the first process of a learner of several: it tells the others each call before it makes it.

The others take orders inside of their ``session.step()``. So does this process give them there, and at no other time.
"""

from collections.abc import Mapping

from torch import Tensor

from diloco.core.fragments import Layout
from diloco.learner.data.own_code import OwnCode
from diloco.learner.exchange.orders import Ending
from diloco.learner.learner import Learner
from diloco.learner.session.loop_state import LearnerOfJob, Parts
from diloco.learner.session.stop_handlers import StopHandlers
from diloco.learner.session.together import Together, parting_of
from diloco.learner.session.trainer import SessionTrainer
from diloco.learner.training.capture import Capture
from diloco.learner.training.fragment_trainer import NOTHING, StepResult, TrainerState
from diloco.learner.unit.checkpoints import OtherRanks
from diloco.learner.unit.collectives.channels import Channels
from diloco.learner.unit.orders import Op, Order
from diloco.learner.unit.rank import ModelParts
from diloco.learner.unit.unit_trainer import UnitReader


class LeadingTrainer(SessionTrainer):
    """Has the fragments whole, as received, and its part of the model that the loop trains."""

    def __init__(self, options: LearnerOfJob, layout: Layout, parts: Parts, code: OwnCode, world: Channels) -> None:
        """See `SessionTrainer`; all processes make theirs at the same time."""
        super().__init__(options, layout, parts, code)
        self._own, self._world = ModelParts(parts.module, layout, world), world
        self._reader = UnitReader(self._own)
        self.others = OtherRanks({}, world)
        self.optimizer_identity += f" in {world.ranks} processes, {parting_of(self._parameters)}"

    def capture(self, fragment: int) -> Capture:
        """See `FragmentTrainer`."""
        self._world.tell(Order(Op.CAPTURE, fragment))
        return super().capture(fragment)

    def _write(self, fragment: int, values: Tensor) -> None:
        self._world.tell(Order(Op.APPLY, fragment))
        self._own.receive(fragment, values)

    def evaluate(self, replaced: Mapping[int, Tensor] = NOTHING) -> float:
        """See `FragmentTrainer`; nothing can be replaced."""
        assert not replaced
        self._world.tell(Order(Op.EVALUATE))
        with self._own.as_received():
            return self._evaluated()

    def start_over(self) -> None:
        """See `FragmentTrainer`."""
        self._world.tell(Order(Op.START_OVER))
        super().start_over()

    def state(self) -> TrainerState:
        """See `FragmentTrainer`; a checkpoint has to be written next, as the others do that."""
        self._world.tell(Order(Op.SAVE))
        return super().state()

    def load_state(self, state: TrainerState) -> None:
        """See `SessionTrainer`; the others have read theirs before."""
        super().load_state(state)
        self._world.tell(Order(Op.TAKE_UP))

    def end(self) -> None:
        """End the session in the others."""
        self._world.tell(Order(Op.END))


class Leading:
    """What a session has of its learner."""

    def __init__(self, learner: Learner, trainer: LeadingTrainer, together: Together, handlers: StopHandlers) -> None:
        """``handlers``: those before the loop."""
        self.loop = self
        self._learner, self._trainer, self._together = learner, trainer, together
        self._handlers = handlers

    def start(self) -> None:
        """See `Learner`."""
        self._learner.start()

    def begin(self) -> Ending | None:
        """See `InnerLoop`."""
        return self._going_on(self._learner.loop.begin())

    def after_step(self, result: StepResult) -> Ending | None:
        """See `InnerLoop`.

        Raises:
            DataError: the processes are not together.
        """
        self._handlers.restore()
        self._together.meet(result.steps)
        return self._going_on(self._learner.loop.after_step(result))

    def ending(self) -> Ending | None:
        """None: without a step the others take no orders."""
        return None

    def finish(self, ending: Ending) -> None:
        """See `Learner`."""
        self._learner.finish(ending)

    def _going_on(self, ending: Ending | None) -> Ending | None:
        if ending is None:
            self._together.world.tell(Order(Op.GO_ON, self._trainer.steps))
        return ending
