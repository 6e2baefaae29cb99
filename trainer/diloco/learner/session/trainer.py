"""The trainer of a loop of the user's own: it makes no step, and holds what one changes."""

from collections.abc import Mapping

from torch import Tensor

from diloco.core.fragments import Layout
from diloco.learner.data.own_code import OwnCode
from diloco.learner.session.loop_state import LearnerOfJob, LoopState, Parts
from diloco.learner.training.fragment_trainer import NOTHING, FragmentTrainer, TrainerState
from diloco.learner.training.optimizers.packed_state import unpacked
from diloco.model.values import swapped


class SessionTrainer(LoopState, FragmentTrainer):
    """Holds model and optimizers of a loop of the user's own, and counts their steps."""

    def __init__(self, options: LearnerOfJob, layout: Layout, parts: Parts, code: OwnCode) -> None:
        """``code``: the loop.

        Raises:
            DataError: the optimizers do not train exactly the trained parameters.
        """
        FragmentTrainer.__init__(self, parts.module, layout, next(parts.module.parameters()).device)
        self._take(options, parts, code)
        self.optimizer_identity = self._optimizer.identity

    def evaluate(self, replaced: Mapping[int, Tensor] = NOTHING) -> float:
        """See `FragmentTrainer`."""
        with swapped(self._module, self._anchors(replaced)):
            return self._evaluated()

    def catch_up(self, steps: int, data_position: int) -> None:
        """See `FragmentTrainer`; the data is the loop's."""
        del data_position
        ahead = max(0, steps - self.steps)
        self._count_before(ahead, ahead * self._step_tokens)

    def start_over(self) -> None:
        """See `FragmentTrainer`."""
        self._optimizer.start_over()

    def state(self) -> TrainerState:
        """See `FragmentTrainer`."""
        return TrainerState(self._state(), self._optimizer.steps, self.steps, self.tokens, 0)

    def load_state(self, state: TrainerState) -> None:
        """See `FragmentTrainer`.

        Raises:
            DataError: what was saved cannot be loaded.
        """
        values = unpacked(state.tensors)
        self._optimizer.load_values(values, state.optimizer_steps)
        self._count_before(state.steps - self.steps, state.tokens - self.tokens)
        self._load_saved(values["saved"])
