"""Inner optimizers of the user's own: any of torch's kind, one or several, that together train the model.

Their groups keep their own learning rates as peaks; warm-up and decay are those of ``training.optimizer``.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diloco.learner.training.optimizers.optimizer import LearningRates, OptimizerError
from diloco.learner.training.optimizers.packed_state import Part, UnstorableError, packed, unpacked
from diloco.model.entrypoint import one_line
from diloco.model.sharded import Place, is_parted, part
from diloco.spec.training import InnerOptimizer

Group = dict[str, Any]


class Maker(Protocol):
    """The user's code that has made an optimizer: a task, or a loop."""

    @property
    def field(self) -> str:
        """In the manifest, for messages."""

    def mistake(self, text: str) -> ValueError:
        """The error to raise about it."""


class OwnOptimizer:
    """``NamedOptimizer`` for optimizers that the user's code has made of the parameters."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        parameters: Mapping[str, nn.Parameter],
        options: InnerOptimizer,
        maker: Maker,
    ) -> None:
        """``parameters``: the trained ones, by name.

        Raises:
            DataError: the optimizers do not train exactly these.
        """
        if options.type != "AdamW" or options.groups:
            raise maker.mistake("it has an optimizer of its own; remove training.optimizer.type, muon and groups")
        self._optimizers, self._maker = optimizers, maker
        self._parameters = parameters
        self._peak = options.learning_rate
        held = Counter(id(one) for group in self._groups() for one in group["params"])
        if missing := [name for name, one in parameters.items() if id(one) not in held]:
            raise maker.mistake(f"its optimizer does not hold {missing[0]}; give it every parameter, or freeze it")
        if twice := [name for name, one in parameters.items() if held[id(one)] > 1]:
            raise maker.mistake(f"two of its optimizers hold {twice[0]}; give each parameter to one of them")
        if len(held) > len(parameters):
            raise maker.mistake("its optimizer holds more than the parameters it was given; give it only these")
        self._as_made = [{key: one for key, one in group.items() if key != "lr"} for group in self._groups()]
        self._peaks = [_rate(group) for group in self._groups()]
        self.steps = 0
        """Steps made, including those before a restart."""
        self.identity = " and ".join(f"{type(one).__module__}.{type(one).__qualname__}" for one in optimizers)
        """A description of what the state belongs to."""

    skips_on_device = False

    @property
    def learning_rate(self) -> float:
        """Of the first group; NaN if the optimizer computes it."""
        return _rate(next(self._groups()))

    def step(self, rates: LearningRates, skip: Tensor | None = None) -> None:
        """Update every parameter by its gradient, at its group's learning rate, and clear the gradients.

        ``skip``: none, as the user's code knows no such thing.

        Raises:
            DataError: it raised, or a group has no learning rate.
        """
        assert skip is None, "see skips_on_device"
        share = rates["AdamW"] / self._peak
        for group, peak in zip(self._groups(), self._peaks, strict=True):
            if math.isnan(peak):
                raise self._maker.mistake("its optimizer has groups without lr; give each a learning rate")
            group["lr"] = peak * share
        try:
            for optimizer in self._optimizers:
                optimizer.step()
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise self._maker.mistake(f"its optimizer's step() raised {one_line(error)}") from error
        self.zero_grad()
        self.steps += 1

    def zero_grad(self) -> None:
        """Clear the gradients without using them."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def start_over(self) -> None:
        """Drop the state and the count of steps, so that the learning rate of a task warms up again."""
        for optimizer in self._optimizers:
            optimizer.state.clear()
        for group, made in zip(self._groups(), self._as_made, strict=True):
            group.update(made)  # a loop's schedule goes on from its rates, and from what it has added
        self.steps = 0

    def values(self) -> dict[str, Any]:
        """All that the optimizers keep, of parted tensors this process's part: what `load_values` takes.

        Its tensors are theirs, not copies.

        ``groups``: of each its rate, betas and so on. ``state``: by name of a parameter.
        """
        return {
            "groups": [{key: one for key, one in group.items() if _is_stored(key, one)} for group in self._groups()],
            "state": {
                name: _in_parts(kept, parameter)
                for name, parameter in self._parameters.items()
                for optimizer in self._optimizers
                if (kept := dict(optimizer.state.get(parameter, {})))
            },
        }

    def load_values(self, values: Mapping[str, Any], steps: int) -> None:
        """Restore what ``values`` returned after ``steps`` steps, before the first step.

        Raises:
            KeyError, ValueError: it is of other groups, or of a parameter that does not exist.
        """
        groups = list(self._groups())
        for group, kept in zip(groups, values["groups"], strict=True):
            if missing := {key for key, one in group.items() if _is_stored(key, one)} - kept.keys():
                raise KeyError(min(missing))
        if unknown := values["state"].keys() - self._parameters.keys():
            raise KeyError(min(unknown))
        for group, kept in zip(groups, values["groups"], strict=True):
            group.update({key: _like(one, group.get(key)) for key, one in kept.items()})
        for name, kept in values["state"].items():
            parameter = self._parameters[name]
            optimizer, group = self._holder(parameter)
            counts_there = bool(group.get("capturable") or group.get("fused"))
            optimizer.state[parameter] = _placed(kept, parameter, counts_there=counts_there)
        self.steps = steps

    def packed(self, **more: object) -> dict[str, Tensor]:
        """``values`` and ``more`` as tensors, not copies.

        Raises:
            OptimizerError: the optimizers keep what cannot be stored.
        """
        try:
            return packed(self.values() | more)
        except UnstorableError as error:
            raise OptimizerError(
                f"{self._maker.field}: its optimizer keeps {error}; use one whose state is numbers, text, tensors, and "
                "lists and dictionaries of these"
            ) from error

    def state(self, **more: object) -> dict[str, Tensor]:
        """A copy of ``values`` and ``more``, as tensors in host memory.

        Raises:
            OptimizerError: the optimizers keep what cannot be stored.
        """
        return {name: one.to("cpu", copy=True).contiguous() for name, one in self.packed(**more).items()}

    def places(self) -> dict[str, Place]:
        """None: it is never parted, and its tensors may have any shape."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Restore what ``state`` returned after ``steps`` steps, before the first step.

        Raises:
            KeyError, ValueError, TypeError: it is of another optimizer, or of a parameter that does not exist.
        """
        self.load_values(unpacked(tensors), steps)

    def _groups(self) -> Iterator[Group]:
        for optimizer in self._optimizers:
            yield from optimizer.param_groups

    def _holder(self, parameter: nn.Parameter) -> tuple[torch.optim.Optimizer, Group]:
        """What trains a parameter."""
        return next(
            (optimizer, group)
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            if any(one is parameter for one in group["params"])
        )


def _rate(group: Group) -> float:
    rate = group.get("lr")
    return math.nan if rate is None else float(rate)


def _is_stored(key: str, value: object) -> bool:
    """Whether a group's value is its state; what else it has, such as functions, is as the user's code makes it."""
    if key == "params":
        return False
    try:
        packed(value)
    except UnstorableError:
        return False
    return True


def _like(value: Any, held: object) -> Any:
    return value.to(held.device, copy=True) if isinstance(held, Tensor) and isinstance(value, Tensor) else value


def _in_parts(value: Any, parameter: nn.Parameter) -> Any:
    """``value`` with a `Part` in place of each tensor that is parted as ``parameter`` is."""
    if isinstance(value, dict):
        return {key: _in_parts(one, parameter) for key, one in value.items()}
    if isinstance(value, list):
        return [_in_parts(one, parameter) for one in value]
    as_parameter = isinstance(value, Tensor) and is_parted(value) and _cut(value) == _cut(parameter)
    return Part(part(value.detach())) if as_parameter else value


def _cut(tensor: Any) -> tuple[object, ...]:
    return tensor.shape, tensor.placements, tensor.device_mesh


def _placed(value: Any, parameter: nn.Parameter, *, counts_there: bool) -> Any:
    """``value`` with its tensors where an optimizer that trains ``parameter`` has them.

    ``counts_there``: whether counts of steps are on the parameter's device; torch has them on the CPU otherwise.
    """
    if isinstance(value, dict):
        for key, one in value.items():
            value[key] = _placed(one, parameter, counts_there=counts_there)
        return value
    if isinstance(value, Part):
        made = torch.zeros_like(parameter, dtype=value.values.dtype)
        if part(made).shape != value.values.shape:
            raise ValueError(f"a part of shape {tuple(value.values.shape)} is not {tuple(part(made).shape)}")
        part(made).copy_(value.values)
        return made
    if isinstance(value, list | tuple):
        return type(value)(_placed(one, parameter, counts_there=counts_there) for one in value)
    if not isinstance(value, Tensor):
        return value
    if value.shape == parameter.shape and not is_parted(parameter):
        return torch.empty_like(parameter, dtype=value.dtype).copy_(value)
    return value.to(parameter.device, copy=True) if value.dim() or counts_there else value.clone()
