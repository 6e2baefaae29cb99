"""The trainer of a loop of the user's own: it makes no step, and holds what one changes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from diloco.core.fragments import Layout
from diloco.learner.data.opening import batch_size_of
from diloco.learner.data.own_code import OwnCode
from diloco.learner.options import LearnerOptions
from diloco.learner.training.fragment_trainer import NOTHING, FragmentTrainer, TrainerState
from diloco.learner.training.own_optimizer import OwnOptimizer
from diloco.model.constants import SavedBuffers, changed_in_training, frozen_digests
from diloco.model.probe import evaluating
from diloco.model.values import swapped

_MOST_SAVED: Final = 500_000
"""Characters of JSON that a loop may save (ours): they are in a checkpoint's manifest."""


class Stateful(Protocol):
    """What a loop has besides model and optimizer: a place in its data, a learning-rate schedule."""

    def state_dict(self) -> dict[str, Any]:
        """Its state, of values that JSON has."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Go on from what ``state_dict`` returned."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a loop hands to its session."""

    optimizer: torch.optim.Optimizer
    evaluate: Callable[[nn.Module], float | Tensor]


class SessionTrainer(FragmentTrainer):
    """Holds model and optimizer of a loop of the user's own, and counts its steps."""

    def __init__(self, options: LearnerOptions, module: nn.Module, layout: Layout, parts: Parts, code: OwnCode) -> None:
        """``module``: on its device. ``code``: the loop.

        Raises:
            DataError: the optimizer does not train exactly the trained parameters.
        """
        super().__init__(module, layout, next(module.parameters()).device)
        self.saved: dict[str, Stateful] = {}
        """What is saved and restored besides the optimizer, by name."""
        self._parts, self._code = parts, code
        job = options.job.spec
        self._optimizer = OwnOptimizer(parts.optimizer, self._parameters, job.training.optimizer, code)
        self._buffers, self._frozen = SavedBuffers(module), frozen_digests(module)
        self.optimizer_identity = self._optimizer.identity
        self.batch_size = batch_size_of(job, options.learner)
        self._step_tokens = self.batch_size * job.training.sequence_length

    @property
    def learning_rate(self) -> float:
        """That of the optimizer's first group."""
        return float(self._parts.optimizer.param_groups[0]["lr"])

    def count_step(self) -> int:
        """Count a step that the loop has made; returns its tokens."""
        self.steps += 1
        self.tokens += self._step_tokens
        self._optimizer.steps += 1
        return self._step_tokens

    def evaluate(self, replaced: Mapping[int, Tensor] = NOTHING) -> float:
        """See `FragmentTrainer`."""
        frozen = frozen_digests(self._module).items() ^ self._frozen.items()
        if changed := self._buffers.changed() or min(frozen, default=("", ""))[0]:
            raise changed_in_training(changed)
        with torch.no_grad(), evaluating(self._module), swapped(self._module, self._anchors(replaced)):
            loss = self._code.call("evaluate", self._parts.evaluate, self._module)
        return self.number("evaluate returned", loss)

    def number(self, what: str, value: Any) -> float:
        """``value`` as a number; ``what`` begins the message if it is none.

        Raises:
            DataError: it is none.
        """
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._code.mistake(f"{what} a {type(value).__name__}; give one number") from error

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
        tensors, made = self._optimizer.state(), self._optimizer.steps
        return TrainerState(tensors, made, self.steps, self.tokens, 0, self._saved())

    def load_state(self, state: TrainerState) -> None:
        """See `FragmentTrainer`.

        Raises:
            DataError: what was saved cannot be loaded.
        """
        self._optimizer.load_state(state.tensors, state.optimizer_steps)
        self._count_before(state.steps - self.steps, state.tokens - self.tokens)
        states = json.loads(state.saved or "{}")
        for name, one in self.saved.items():
            if name in states:
                self._code.call(f"saved {name!r}: load_state_dict", one.load_state_dict, states[name])

    def _saved(self) -> str:
        """JSON of all that is saved.

        Raises:
            DataError: a state is not as it was once it has been written and read, or all take too much room.
        """
        states: dict[str, Any] = {}
        for name, one in self.saved.items():
            states[name] = self._code.call(f"saved {name!r}: state_dict", one.state_dict)
            try:
                same = json.loads(json.dumps(states[name])) == states[name]
            except (TypeError, ValueError, RecursionError):
                same = False
            if not same:
                raise self._code.mistake(
                    f"saved {name!r}: its state_dict has values that JSON lacks; use numbers, text, lists and "
                    "dictionaries with keys of text"
                )
        text = json.dumps(states)
        if len(text) > _MOST_SAVED:
            raise self._code.mistake(
                f"saved: its states have {len(text)} characters of JSON; use at most {_MOST_SAVED}"
            )
        return text
