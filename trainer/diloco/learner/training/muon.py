"""Muon: momentum whose directions are all made equally strong, for matrices and stacks of them.

torch's own is the same to the bit, but takes no stacks (the experts of a mixture) and is only in torch 2.9 and later.
"""

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from diloco.learner.training.adamw import Group, State
from diloco.model.sharded import part, part_of, whole

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""Of the iteration, steepest at 0 (https://kellerjordan.github.io/posts/muon/), as are steps and epsilon."""
_STEPS: Final = 5
_EPSILON: Final = 1e-7


class Muon:
    """Muon with Nesterov momentum and updates of AdamW's size: one rate suits all shapes (arXiv 2502.16982, 2.2)."""

    def __init__(self, groups: Sequence[Group], momentum: float) -> None:
        """``groups``: of matrices, or stacks (matrices, rows, columns)."""
        self._groups = groups
        self._momentum = momentum
        self.state: State = {}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update every parameter that has a gradient."""
        for group in self._groups:
            scaled = rate * group.scale
            for parameter in group.parameters:
                if (gradient := parameter.grad) is None:
                    continue
                if parameter not in self.state:
                    self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
                momentum = self.state[parameter]["momentum_buffer"].lerp_(gradient, 1 - self._momentum)
                # A parted matrix is not orthogonalized by its parts: each process does the whole, and keeps its own.
                update = orthogonal(whole(gradient.lerp(momentum, self._momentum)))
                parameter.mul_(1 - scaled * group.weight_decay)
                part(parameter).add_(
                    part_of(update, parameter), alpha=-scaled * (0.2 * math.sqrt(max(parameter.shape[-2:])))
                )


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrices with singular values of about 1, by Newton-Schulz steps in BF16; each one by itself.

    In F32 on a CPU that has no BF16 (neither AVX-512 nor AMX): torch then takes ten times as long for it.
    """
    a, b, c = _COEFFICIENTS
    x = matrices.to(torch.float32 if emulates_bf16(matrices.device) else torch.bfloat16, copy=True).view(
        -1, *matrices.shape[-2:]
    )
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x.div_(x.norm(dim=(-2, -1), keepdim=True).clamp(min=_EPSILON))
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).view(matrices.shape)


def emulates_bf16(device: torch.device) -> bool:
    """Whether it has no operations of its own for matrices in BF16."""
    return device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001  # no public name
