"""What each process has of a loop of the user's own, between its steps: optimizers, and what the loop saves."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from diloco.learner.data.opening import batch_size_of
from diloco.learner.data.own_code import OwnCode
from diloco.learner.session.step_count import StepCount
from diloco.learner.training.optimizers.own_optimizer import OwnOptimizer
from diloco.learner.training.optimizers.packed_state import UnstorableError, packed
from diloco.model.constants import SavedBuffers, changed_in_training, frozen_digests
from diloco.model.probe import evaluating
from diloco.spec import DiLoCoJob

_STATES: Final = (("state_dict", "load_state_dict"), ("get_state", "set_state"), ("getstate", "setstate"))
"""Methods that return a state and take it: torch's, those of ``torch.Generator``, and Python's ``random.Random``."""


class Stateful(Protocol):
    """What a loop has besides model and optimizer: a learning-rate schedule, a place in its data."""

    def state_dict(self) -> dict[str, Any]:
        """Its state: numbers, text, tensors, and lists, tuples and dictionaries of these."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Go on from what ``state_dict`` returned."""


class LearnerOfJob(Protocol):
    """Which learner this is."""

    @property
    def job(self) -> DiLoCoJob:
        """Its job."""

    @property
    def learner(self) -> str:
        """Its id, ``region/pool/index``."""

    @property
    def directory(self) -> Path:
        """Its own, on this machine."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a loop hands to its session."""

    module: nn.Module
    """On its device, with the names of the model as built."""
    optimizers: Sequence[torch.optim.Optimizer]
    evaluate: Callable[[], float | Tensor]


class LoopState:
    """The loop's part of a trainer, which has the model and the counts."""

    device: torch.device
    steps: int
    tokens: int
    _module: nn.Module
    _parameters: dict[str, nn.Parameter]

    def _take(self, options: LearnerOfJob, parts: Parts, code: OwnCode) -> None:
        """Take what the loop has; the model is there.

        Raises:
            DataError: the optimizers do not train exactly the trained parameters.
        """
        self.saved: dict[str, Stateful | torch.Generator] = {}
        """What is saved and restored besides the optimizers, by name."""
        self._parts, self._code = parts, code
        job = options.job.spec
        self._optimizer = OwnOptimizer(parts.optimizers, self._parameters, job.training.optimizer, code)
        self._made = StepCount(parts.optimizers)
        self._buffers, self._frozen = SavedBuffers(self._module), frozen_digests(self._module)
        self.batch_size = batch_size_of(job, options.learner)
        self._step_tokens = self.batch_size * job.training.sequence_length

    @property
    def learning_rate(self) -> float:
        """That of the first optimizer's first group."""
        return self._optimizer.learning_rate

    def count_steps(self) -> tuple[int, int]:
        """Count the steps that the optimizers have made since the last call; returns how many, and their tokens."""
        made = self._made.take()
        self.steps += made
        self.tokens += made * self._step_tokens
        self._optimizer.steps += made
        return made, made * self._step_tokens

    def check_saved(self) -> None:
        """Check that all of ``saved`` can be saved.

        Raises:
            DataError: something cannot; one line that names it.
        """
        self._saved()

    def check_optimizer(self) -> None:
        """Check, after a step, that the optimizers' state can be saved.

        Raises:
            OptimizerError: it cannot; one line that names what.
        """
        self._optimizer.packed()

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

    def _evaluated(self) -> float:
        """What the loop's evaluation returns for the model as it is.

        Raises:
            DataError: it raised, or is no number.
            ModelError: training has changed more than trained parameters.
        """
        frozen = frozen_digests(self._module).items() ^ self._frozen.items()
        if changed := self._buffers.changed() or min(frozen, default=("", ""))[0]:
            raise changed_in_training(changed)
        with torch.no_grad(), evaluating(self._module):
            loss = self._code.call("evaluate", self._parts.evaluate)
        reshard(self._module)
        return self.number("evaluate returned", loss)

    def _state(self) -> dict[str, Tensor]:
        """Of the optimizers, and of what is saved: a copy in host memory.

        Raises:
            OptimizerError, DataError: something cannot be saved.
        """
        return self._optimizer.state(saved=self._saved())

    def _load_saved(self, states: Mapping[str, Any]) -> None:
        """Restore what was saved.

        Raises:
            DataError: it cannot be loaded.
        """
        for name, one in self.saved.items():
            if name in states:
                load = self._methods(name, one)[1]
                self._code.call(f"saved {name!r}: {load}", getattr(one, load), states[name])

    def _saved(self) -> dict[str, Any]:
        """The states of all that is saved.

        Raises:
            DataError: something has no state, or one that cannot be stored.
        """
        states: dict[str, Any] = {}
        for name, one in self.saved.items():
            get = self._methods(name, one)[0]
            states[name] = self._code.call(f"saved {name!r}: {get}", getattr(one, get))
            try:
                packed(states[name])
            except UnstorableError as error:
                raise self._code.mistake(
                    f"saved {name!r}: its {get}() has {error}; use numbers, text, tensors, and lists, tuples and "
                    "dictionaries of these"
                ) from error
        return states

    def _methods(self, name: str, one: object) -> tuple[str, str]:
        for get, load in _STATES:
            if callable(getattr(one, get, None)) and callable(getattr(one, load, None)):
                return get, load
        raise self._code.mistake(
            f"saved {name!r}: it is a {type(one).__name__}, without state_dict() and load_state_dict(); save an object "
            "that has both, or compute its state from session.steps"
        )


def reshard(module: nn.Module) -> None:
    """Have FSDP drop the gathered copies of parameters that it keeps after a forward pass without gradients.

    Else these would be read in place of the parts, and the next pass would compute with them, whatever is written to
    the parts meanwhile.
    """
    if "torch.distributed.fsdp" in sys.modules:
        for one in module.modules():
            if isinstance(one, sys.modules["torch.distributed.fsdp"].FSDPModule):
                one.reshard()
