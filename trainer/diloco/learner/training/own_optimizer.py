"""An inner optimizer of the user's own: any of torch's kind whose state is tensors and numbers.

Its groups keep their own learning rates as peaks; warm-up and decay are those of ``training.optimizer``.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from diloco.learner.training.optimizer import LearningRates, OptimizerError
from diloco.model.entrypoint import one_line
from diloco.model.sharded import Place
from diloco.spec.training import InnerOptimizer

_NUMBER: Final = "number:"
"""Begins the key of a state that is no tensor."""
_GROUP: Final = "group:"
"""Begins the key of what a group has besides parameters: its rate, betas, a count of steps."""


class Maker(Protocol):
    """The user's code that has made an optimizer: a task, or a loop."""

    @property
    def field(self) -> str:
        """In the manifest, for messages."""

    def mistake(self, text: str) -> ValueError:
        """The error to raise about it."""


class OwnOptimizer:
    """``NamedOptimizer`` for an optimizer that the user's code has made of the parameters."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        options: InnerOptimizer,
        task: Maker,
    ) -> None:
        """``parameters``: the trained ones, by name.

        Raises:
            DataError: it does not train exactly these, or has no learning rate.
        """
        if options.type != "AdamW" or options.groups:
            raise task.mistake("it has an optimizer of its own; remove training.optimizer.type, muon and groups")
        self._optimizer, self._task = optimizer, task
        self._parameters = parameters
        self._peak = options.learning_rate
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        if missing := [name for name, one in parameters.items() if id(one) not in held]:
            raise task.mistake(f"its optimizer does not hold {missing[0]}; give it every parameter, or freeze it")
        if len(held) > len(parameters):
            raise task.mistake("its optimizer holds more than the parameters it was given; give it only these")
        if not all(isinstance(group.get("lr"), float | int | Tensor) for group in optimizer.param_groups):
            raise task.mistake("its optimizer has groups without lr; give each a learning rate")
        self._as_made = [{key: one for key, one in group.items() if key != "lr"} for group in optimizer.param_groups]
        self._peaks = [float(group["lr"]) for group in optimizer.param_groups]
        self.steps = 0
        """Steps made, including those before a restart."""
        self.identity = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        """A description of what the state belongs to."""

    def step(self, rates: LearningRates) -> None:
        """Update every parameter by its gradient, at its group's learning rate, and clear the gradients.

        Raises:
            DataError: it raised.
        """
        share = rates["AdamW"] / self._peak
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * share
        try:
            self._optimizer.step()
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise self._task.mistake(f"its optimizer's step() raised {one_line(error)}") from error
        self.zero_grad()
        self.steps += 1

    def zero_grad(self) -> None:
        """Clear the gradients without using them."""
        self._optimizer.zero_grad()

    def start_over(self) -> None:
        """Drop the state and the count of steps, so that the learning rate of a task warms up again."""
        self._optimizer.state.clear()
        for group, made in zip(self._optimizer.param_groups, self._as_made, strict=True):
            group.update(made)  # a loop's schedule goes on from its rates, and from what it has added
        self.steps = 0

    def state(self) -> dict[str, Tensor]:
        """A copy of the state in host memory, by ``KEY.NAME``.

        A number's key is ``number:KEY.NAME``; that of a number of a group, or of a tuple of them, such as its rate or
        betas, is ``group:INDEX.KEY``.

        Raises:
            OptimizerError: it keeps something else than tensors and numbers.
        """
        tensors = {
            f"{_GROUP}{index}.{key}": _tensor_of(value)
            for index, group in enumerate(self._optimizer.param_groups)
            for key, value in group.items()
            if isinstance(value, Tensor) or _are_numbers(value if isinstance(value, tuple | list) else [value])
        }
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{key}.{name}"] = value.to("cpu", copy=True).contiguous()
                elif isinstance(value, int | float):
                    tensors[f"{_NUMBER}{key}.{name}"] = _tensor_of(value)
                elif value is not None:
                    raise OptimizerError(
                        f"{self._task.field}: its optimizer keeps a {type(value).__name__} as {key} of {name}; use one "
                        "whose state is tensors and numbers"
                    )
        return tensors

    def places(self) -> dict[str, Place]:
        """None: it is never parted, and its tensors may have any shape."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Restore what ``state`` returned after ``steps`` steps, before the first step.

        Raises:
            KeyError: a state is of a parameter that does not exist, or a group's numbers are missing.
        """
        numbers = {full: one for full, one in tensors.items() if full.startswith(_GROUP)}
        if missing := {full for full in self.state() if full.startswith(_GROUP)} - numbers.keys():
            raise KeyError(min(missing))
        tensors = {full: one for full, one in tensors.items() if full not in numbers}
        groups = {id(one): group for group in self._optimizer.param_groups for one in group["params"]}
        found = {full: full.removeprefix(_NUMBER).partition(".")[::2] for full in tensors}
        if unknown := [full for full, (_, name) in found.items() if name not in self._parameters]:
            raise KeyError(min(unknown))
        by_index = dict(enumerate(self._optimizer.param_groups))
        for full, number in numbers.items():
            index, _, key = full.removeprefix(_GROUP).partition(".")
            group = by_index[int(index)]
            if isinstance(held := group.get(key), Tensor):
                group[key] = number.to(held.device, copy=True)
            else:
                group[key] = tuple(number.tolist()) if number.dim() else number.item()
        for full, (key, name) in found.items():
            tensor, parameter = tensors[full], self._parameters[name]
            group, kept = groups[id(parameter)], self._optimizer.state[parameter]
            if full.startswith(_NUMBER):
                kept[key] = tensor.item()
            elif tensor.shape == parameter.shape:
                kept[key] = torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)
            else:  # torch counts steps on the CPU, unless the device does
                there = tensor.dim() > 0 or group.get("capturable") or group.get("fused")
                kept[key] = tensor.to(parameter.device, copy=True) if there else tensor.clone()
        self.steps = steps


def _are_numbers(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(one, int | float) for one in values)


def _tensor_of(value: float | Sequence[float] | Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return torch.tensor(value, dtype=None if isinstance(value, int) else torch.float64)
