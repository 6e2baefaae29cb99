"""The inner optimizer: AdamW for everything, or Muon for the hidden matrices and AdamW for the rest.

Its state is saved as named tensors, so that no pickle is needed.

The learning rate rises with the learner's own steps, as an optimizer without moments must warm up whenever its learner
joins. It falls with the job's progress, so that learners of different speed, and those that join late, end together.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diloco.learner.training.devices.host_copies import Copied, HostCopies, whole_copies
from diloco.learner.training.optimizers.adamw import AdamW, Group
from diloco.learner.training.optimizers.muon import Muon
from diloco.learner.training.share import WHOLE, Share
from diloco.model import sharded
from diloco.model.fragments import hidden_matrices, trained_parameters
from diloco.model.sharded import by_mesh
from diloco.spec.training import InnerOptimizer, MuonOptions, OptimizerType

_log = logging.getLogger(__name__)

LearningRates = Mapping[OptimizerType, float]
"""Learning rates of one step: AdamW's, and Muon's if the job uses it."""


def learning_rates(options: InnerOptimizer, optimizer_steps: int, progress: float) -> LearningRates:
    """Learning rates of the next step: each optimizer has its own peak; warm-up and decay are shared.

    ``optimizer_steps``: steps the optimizer has made. ``progress``: merged tokens over the budget; clamped to 0 .. 1.
    """
    warm = min(1.0, (optimizer_steps + 1) / options.warmup_steps) if options.warmup_steps else 1.0
    share = warm * _decay(options, progress)
    rates: dict[OptimizerType, float] = {"AdamW": options.learning_rate * share}
    if (muon := options.muon_options) is not None:
        rates["Muon"] = muon.learning_rate * share
    return rates


def _decay(options: InnerOptimizer, progress: float) -> float:
    """Share of the peak that is left at this progress of the job."""
    over = min(1.0, max(0.0, progress))
    match options.decay:
        case "Constant":
            return 1.0
        case "Cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * over))
        case "Linear":
            left = 1.0 - over
        case "WSD":
            left = 1.0 - math.sqrt(max(0.0, 1.0 - (1.0 - over) / options.decay_fraction))
    return options.final_fraction + (1.0 - options.final_fraction) * left


class OptimizerError(ValueError):
    """The requested inner optimizer is not possible; the text is one line that names the field."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An optimizer and what it trains."""

    optimizer: AdamW | Muon
    parameters: Mapping[str, nn.Parameter]
    state: tuple[str, ...]
    """What it keeps of each parameter."""


class NamedOptimizer:
    """AdamW, or Muon and AdamW, for a model's trained parameters by name.

    AdamW's weight decay applies only to tensors with two or more dimensions.
    """

    def __init__(self, module: nn.Module, options: InnerOptimizer, share: Share = WHOLE) -> None:
        """``module`` is already on its device, and is not moved afterwards. ``share``: among the processes it is in.

        Raises:
            OptimizerError: a pattern of ``groups`` matches no parameter, or Muon is configured and there is no
                parameter for it, or one that is no matrix.
        """
        trained = _by_optimizer(module, options)
        self._parts: dict[OptimizerType, _Part] = {}
        if trained["AdamW"]:
            self._parts["AdamW"] = _adamw(trained["AdamW"], options)
        if trained["Muon"]:
            self._parts["Muon"] = _muon(trained["Muon"], options, share)
        self._device = next(module.parameters()).device
        self._copies = HostCopies(self._device)
        self._copied: Copied = None
        """After which moments may change: they are being copied."""
        self.steps = 0
        """Steps made, including those before a restart."""
        of_muon = trained["Muon"]
        self.identity = _identity(of_muon) if of_muon else "AdamW"
        """A description of what the state belongs to: for one model, states of equal identity are interchangeable."""
        if of_muon:
            sizes = {kind: sum(one.numel() for one in parameters.values()) for kind, parameters in trained.items()}
            percent = 100 * sizes["Muon"] / sum(sizes.values())
            _log.info("Muon trains %d matrices, %.0f %% of the parameters", _matrices(of_muon), percent)

    skips_on_device = True
    """Whether ``step`` takes ``skip``."""

    def step(self, rates: LearningRates, skip: Tensor | None = None) -> None:
        """Update every parameter by its gradient, at its optimizer's learning rate, and clear the gradients.

        ``skip``: f32, a scalar on the device; 1: nothing changes, apart from ``steps``, which the caller corrects.
        """
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)  # it waits, not this thread
            self._copied = None
        for kind, part in self._parts.items():
            part.optimizer.step(rates[kind], skip)
        self.zero_grad()
        self.steps += 1

    def zero_grad(self) -> None:
        """Clear the gradients without using them."""
        for part in self._parts.values():
            for parameter in part.parameters.values():
                parameter.grad = None

    def start_over(self) -> None:
        """Drop the moments and the count of steps, so that the learning rate warms up again."""
        for part in self._parts.values():
            part.optimizer.state.clear()
        self.steps = 0

    def state(self) -> Mapping[str, Tensor]:
        """A copy of the optimizer's state in host memory, contiguous f32, by ``KIND.NAME`` of each parameter.

        A CUDA device makes it during the next step (`whole_copies`).

        In a learner of several processes: of this one's parts of the parameters. The kinds are AdamW's moments
        ``exp_avg`` and ``exp_avg_sq`` and count ``step``, and Muon's ``momentum_buffer``. A moment has its parameter's
        shape, a count none. Parameters that have had no gradient yet have no state.
        """
        tensors: dict[str, Tensor] = {}
        for part in self._parts.values():
            for name, parameter in part.parameters.items():
                kept = part.optimizer.state.get(parameter, {})
                tensors |= {f"{kind}.{name}": sharded.part(kept[kind]) for kind in part.state if kept}
        made = self._copies.copy_all(tensors)
        self._copied = made.copied
        return made

    def places(self) -> dict[str, sharded.Place]:
        """Where this process's part of each tensor of ``state`` lies, whether or not there is one yet."""
        count = sharded.Place((), (), ())
        return {
            f"{kind}.{name}": count if kind == "step" else sharded.place_of(parameter)
            for part in self._parts.values()
            for name, parameter in part.parameters.items()
            for kind in part.state
        }

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Restore what ``state`` returned after ``steps`` steps, before the first step.

        Raises:
            KeyError: a part of the state is missing, or of a parameter or an optimizer that does not exist.
            ValueError: a moment has another shape than its parameter.
        """
        left = dict(whole_copies(tensors))
        found = [
            (
                part.optimizer.state,
                parameter,
                {kind: _laid_out(left.pop(f"{kind}.{name}"), kind, name, parameter) for kind in part.state},
            )
            for part in self._parts.values()
            for name, parameter in part.parameters.items()
            if f"{part.state[0]}.{name}" in tensors
        ]
        if left:
            raise KeyError(min(left))
        for of_part, parameter, state in found:
            of_part[parameter] = state
        self.steps = steps


def _by_optimizer(module: nn.Module, options: InnerOptimizer) -> dict[OptimizerType, dict[str, nn.Parameter]]:
    """The trained parameters of each optimizer."""
    parameters = trained_parameters(module)
    for path, pattern in options.idle_patterns(parameters):
        raise OptimizerError(
            f"{path}: {pattern} matches none of the model's {len(parameters)} trained parameters, "
            f"{min(parameters)} among them; correct or remove it"
        )
    if options.type == "AdamW":
        return {"AdamW": parameters, "Muon": {}}
    hidden = frozenset(hidden_matrices(module))
    found: dict[OptimizerType, dict[str, nn.Parameter]] = {"AdamW": {}, "Muon": {}}
    for name, parameter in parameters.items():
        group = options.group_of(name)
        kind = (None if group is None else group.optimizer) or ("Muon" if name in hidden else "AdamW")
        if kind == "Muon" and parameter.dim() not in (2, 3):
            raise OptimizerError(
                f"training.optimizer.groups: Muon trains matrices and stacks of them, and {name} has "
                f"{parameter.dim()} dimensions; match it in an earlier group, or use AdamW"
            )
        found[kind][name] = parameter
    if not found["Muon"]:
        left = "with training.optimizer.groups the model has" if hidden else "the model has"
        raise OptimizerError(
            f"training.optimizer.type: Muon trains hidden matrices, and {left} none (weights that map "
            "features to features, neither embedding nor output layer); use AdamW"
        )
    return found


def _muon(parameters: Mapping[str, nn.Parameter], options: InnerOptimizer, share: Share) -> _Part:
    muon = options.muon_options or MuonOptions()
    groups = _groups(parameters, options, lambda _: muon.weight_decay)
    return _Part(Muon(groups, muon.momentum, share), parameters, ("momentum_buffer",))


def _adamw(parameters: Mapping[str, nn.Parameter], options: InnerOptimizer) -> _Part:
    groups = _groups(parameters, options, lambda parameter: options.weight_decay if parameter.dim() >= 2 else 0.0)
    optimizer = AdamW(groups, options.beta1, options.beta2, options.epsilon)
    return _Part(optimizer, parameters, ("exp_avg", "exp_avg_sq", "step"))


def _groups(
    parameters: Mapping[str, nn.Parameter], options: InnerOptimizer, decay_of: Callable[[nn.Parameter], float]
) -> list[Group]:
    """The parameters of one ``scale`` of the learning rate and one weight decay (``decay_of``).

    Those of a group are parted among the same processes.
    """
    alike: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        group = options.group_of(name)
        decay = decay_of(parameter) if group is None or group.weight_decay is None else group.weight_decay
        scale = 1.0 if group is None else group.learning_rate_scale
        alike.setdefault((scale, decay), []).append(parameter)
    return [Group(part, scale, decay) for (scale, decay), those in alike.items() for part in by_mesh(those)]


def _laid_out(saved: Tensor, kind: str, name: str, parameter: nn.Parameter) -> Tensor:
    """A part of a parameter's state on its device; a moment in its order in memory, as fused AdamW pairs by that."""
    like = torch.empty((), device=parameter.device) if kind == "step" else torch.empty_like(parameter.detach())
    own = sharded.part(like)
    if saved.shape != own.shape:
        raise ValueError(f"{kind}.{name} has the shape {tuple(saved.shape)}, not {tuple(own.shape)}")
    own.copy_(saved)
    return like


def _matrices(parameters: Mapping[str, nn.Parameter]) -> int:
    """How many matrices these are: a stack counts as many as it has."""
    return sum(math.prod(parameter.shape[:-2]) for parameter in parameters.values())


def _identity(parameters: Mapping[str, nn.Parameter]) -> str:
    digest = hashlib.sha256("\n".join(parameters).encode()).hexdigest()
    return f"Muon on {_matrices(parameters)} matrices ({digest[:12]})"
