"""AdamW by torch's function for it: its class loads the compiler at its first step, for longer than torch itself."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

State = dict[Tensor, dict[str, Tensor]]
"""What an optimizer keeps of each parameter that has had a gradient, by torch's names."""


class Group(NamedTuple):
    """Parameters that are trained alike."""

    parameters: Sequence[nn.Parameter]
    scale: float
    """Of the learning rate."""
    weight_decay: float


class AdamW:
    """torch's, fused, to the bit."""

    def __init__(self, groups: Sequence[Group], beta1: float, beta2: float, epsilon: float) -> None:
        self._groups = groups
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self.state: State = {}

    @torch.no_grad()
    def step(self, rate: float, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient. ``skip``: f32, a scalar on the device; 1: change nothing."""
        for group in self._groups:
            used, gradients, states = list[Tensor](), list[Tensor](), list[dict[str, Tensor]]()
            for one in group.parameters:
                if (gradient := one.grad) is None:
                    continue
                state = self.state.get(one)
                if state is None:
                    state = {kind: torch.zeros_like(one) for kind in ("exp_avg", "exp_avg_sq")}
                    state["step"] = torch.zeros((), dtype=torch.float32, device=one.device)
                    self.state[one] = state
                used.append(one)
                gradients.append(gradient)
                states.append(state)
            adamw(
                used,
                gradients,
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                found_inf=skip,
                amsgrad=False,
                maximize=False,
                beta1=self._beta1,
                beta2=self._beta2,
                lr=rate * group.scale,
                weight_decay=group.weight_decay,
                eps=self._epsilon,
            )
