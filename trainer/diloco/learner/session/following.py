"""A loop's session in another process of a learner than the first: it takes that one's orders inside of ``step()``."""

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from diloco.core.fragments import Layout
from diloco.learner.data.own_code import OwnCode
from diloco.learner.exchange.orders import Ending, EndKind
from diloco.learner.session.loop_state import LearnerOfJob, LoopState, Parts
from diloco.learner.session.stop_handlers import StopHandlers
from diloco.learner.session.together import Together
from diloco.learner.training.fragment_trainer import StepResult
from diloco.learner.training.optimizers.packed_state import unpacked
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.collectives.channels import Channels
from diloco.learner.unit.follower import obey
from diloco.learner.unit.orders import Op
from diloco.learner.unit.rank import ModelParts
from diloco.model.fragments import slot_values, trained_parameters

_ENDED: Final = Ending(EndKind.FINISHED, "the first process has ended the session")


class FollowingTrainer(LoopState):
    """Has its part of the model that the loop trains, and of what was received."""

    def __init__(self, options: LearnerOfJob, layout: Layout, parts: Parts, code: OwnCode, world: Channels) -> None:
        """See `SessionTrainer`; all processes make theirs at the same time."""
        self._module, self._parameters = parts.module, trained_parameters(parts.module)
        self.device = next(parts.module.parameters()).device
        self.steps = self.tokens = 0
        for fragment in layout.fragments:  # the first process reads them
            for _ in slot_values(parts.module, fragment):
                pass
        self._own = ModelParts(parts.module, layout, world)
        self._take(options, parts, code)
        self.kept = Kept(self)

    def give(self, fragment: int) -> None:
        """See `ModelParts`."""
        self._own.give(fragment)

    def receive(self, fragment: int, values: Tensor | None) -> None:
        """See `ModelParts`."""
        self._own.receive(fragment, values)

    def evaluate(self) -> float:
        """See `LoopState`."""
        with self._own.as_received():
            return self._evaluated()

    def start_over(self) -> None:
        """Drop the optimizers' state."""
        self.kept.start_over()

    def go_on(self, steps: int) -> None:
        """Go on with the loop after ``steps`` of the learner."""
        self.steps = steps

    def take_up(self) -> None:
        """Restore what the loop has saved.

        Raises:
            DataError: it cannot be loaded.
        """
        self._load_saved(self.kept.take_saved())


class Kept:
    """What is in this process's parts of checkpoints."""

    def __init__(self, trainer: FollowingTrainer) -> None:
        self._trainer = trainer
        self._saved: Mapping[str, Any] = {}
        """Restored only once the first process takes it up: it may not use the checkpoint."""

    @property
    def steps(self) -> int:
        """Of the optimizers."""
        return self._trainer._optimizer.steps  # noqa: SLF001  # a part of it

    def places(self) -> dict[str, Any]:
        """None: what each process has is its own."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """See `LoopState`."""
        return self._trainer._state()  # noqa: SLF001  # a part of it

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Restore the optimizers' state, and keep what was saved until it is taken.

        Raises:
            KeyError, ValueError: it is of other optimizers.
        """
        values = unpacked(tensors)
        self._trainer._optimizer.load_values(values, steps)  # noqa: SLF001  # a part of it
        self._saved = values["saved"]

    def start_over(self) -> None:
        """Drop all of it."""
        self._saved = {}
        self._trainer._optimizer.start_over()  # noqa: SLF001  # a part of it

    def take_saved(self) -> Mapping[str, Any]:
        """What the loop is to restore now."""
        taken, self._saved = self._saved, {}
        return taken


class Following:
    """What a session has in place of a learner."""

    def __init__(
        self, trainer: FollowingTrainer, together: Together, checkpoints: RankCheckpoints, handlers: StopHandlers
    ) -> None:
        """``handlers``: those before the loop."""
        self.loop = self
        self._trainer, self._together, self._checkpoints = trainer, together, checkpoints
        self._handlers = handlers

    def start(self) -> None:
        """Nothing: the first process joins the job."""

    def begin(self) -> Ending | None:
        """See `InnerLoop`."""
        return self._obey()

    def after_step(self, result: StepResult) -> Ending | None:
        """See `InnerLoop`.

        Raises:
            DataError: the processes are not together.
        """
        self._handlers.restore()
        self._together.meet(result.steps)
        return self._obey()

    def ending(self) -> Ending | None:
        """See `Leading`."""
        return None

    def finish(self, ending: Ending) -> None:
        """Nothing: the first process has ended the session."""

    def _obey(self) -> Ending | None:
        """Do what is told until the loop goes on, or the session ends."""
        while (order := self._together.world.hear()).op not in (Op.GO_ON, Op.END):
            if order.op is Op.TAKE_UP:
                self._trainer.take_up()
            else:
                obey(order, self._trainer, self._checkpoints)
        if order.op is Op.END:
            self._checkpoints.close()
            return _ENDED
        self._trainer.go_on(order.a)
        return None
