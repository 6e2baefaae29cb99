"""AdamW with primal averaging: gradients are taken between where steps lead and the mean of where they led.

The schedule-free method (arXiv 2405.15682) averages all steps, generalized primal averaging (2512.17131) the last ones.
For the experiment `primal_averaging`; `AdamW` of the product is replaced by it.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from diloco.learner.training.optimizers import optimizer
from diloco.learner.training.optimizers.adamw import Group, State


class AveragedAdamW:
    """The model holds y. State: the second moment and z - y, so that what is received moves z and x as it moves y."""

    def __init__(self, share: float, groups: Sequence[Group], beta1: float, beta2: float, epsilon: float) -> None:
        """``share``: of a step in the mean; 0: schedule-free, every step weighs as much as the square of its rate."""
        self._groups, self._share = groups, share
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon
        self._steps, self._weights = 0, 0.0
        self.state: State = {}

    @torch.no_grad()
    def step(self, rate: float, _skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient. A step whose gradient is not finite is not skipped."""
        self._steps += 1
        self._weights += rate**2
        share = self._share or rate**2 / self._weights
        correction = math.sqrt(1 - self._beta2**self._steps)
        for group in self._groups:
            scaled = rate * group.scale
            for one in group.parameters:
                if one.grad is None:
                    continue
                if one not in self.state:
                    self.state[one] = {kind: torch.zeros_like(one) for kind in ("exp_avg", "exp_avg_sq")}
                    self.state[one]["step"] = torch.zeros(())
                ahead, squares = self.state[one]["exp_avg"], self.state[one]["exp_avg_sq"]
                squares.mul_(self._beta2).addcmul_(one.grad, one.grad, value=1 - self._beta2)
                update = one.grad / (squares.sqrt() / correction).add_(self._epsilon)
                update.add_(one, alpha=group.weight_decay)
                one.add_(ahead, alpha=share).sub_(update, alpha=scaled * (1 - self._beta1 * (1 - share)))
                ahead.sub_(update, alpha=scaled * self._beta1).mul_(1 - share)


def averaging(share: float | None) -> AbstractContextManager[object]:
    """Optimizers made meanwhile average, but for None."""
    return nullcontext() if share is None else mock.patch.object(optimizer, "AdamW", partial(AveragedAdamW, share))
