"""Muon: momentum whose directions are all made equally strong, for matrices and stacks of them.

torch's own is the same to the bit, but takes no stacks (the experts of a mixture) and is only in torch 2.9 and later.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from diloco.learner.training.optimizers.adamw import Group, State
from diloco.learner.training.share import WHOLE, Share
from diloco.model.sharded import gradient_part, part

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""Of the iteration, steepest at 0 (https://kellerjordan.github.io/posts/muon/), as are steps and epsilon."""
_STEPS: Final = 5
_EPSILON: Final = 1e-7


class Muon:
    """Muon with Nesterov momentum and updates of AdamW's size: one rate suits all shapes (arXiv 2502.16982, 2.2)."""

    def __init__(self, groups: Sequence[Group], momentum: float, share: Share = WHOLE) -> None:
        """``groups``: of matrices, or stacks (matrices, rows, columns). ``share``: has each computed only once."""
        self._groups = groups
        self._momentum = momentum
        self._share = share
        self.state: State = {}

    @torch.no_grad()
    def step(self, rate: float, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient. Gradients are overwritten.

        ``skip``: f32, a scalar on the device; 1: change nothing.
        """
        for group in self._groups:
            scaled = rate * group.scale
            left: float | Tensor = 1 - scaled * group.weight_decay
            if skip is not None:
                left = torch.where(skip > 0, 1.0, left)
            for alike in _alike(group.parameters):
                size = -scaled * (0.2 * math.sqrt(max(alike[0].shape[-2:])))
                for one, update in zip(alike, self._updates(alike, skip), strict=True):
                    part(one).mul_(left).add_(update if skip is None else update * (1 - skip), alpha=size)

    def _updates(self, parameters: Sequence[nn.Parameter], skip: Tensor | None) -> Iterator[Tensor]:
        """This process's parts of the updates of parameters of one shape."""
        for one in parameters:
            if one not in self.state:
                self.state[one] = {"momentum_buffer": torch.zeros_like(one)}
        momenta = [part(self.state[one]["momentum_buffer"]) for one in parameters]
        gradients = [gradient_part(one) for one in parameters]
        if skip is not None:
            for momentum, gradient in zip(momenta, gradients, strict=True):
                torch.where(skip > 0, momentum, gradient, out=gradient)  # with which the momentum stays as it is
        torch._foreach_lerp_(momenta, gradients, 1 - self._momentum)
        torch._foreach_lerp_(gradients, momenta, self._momentum)
        return self._share.each_once(orthogonal, gradients, parameters, dtype_of(momenta[0].device))


def _alike(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Those that have gradients, by shapes, and how they are parted."""
    found: dict[object, list[nn.Parameter]] = {}
    for one in parameters:
        if one.grad is not None:
            found.setdefault((one.shape, getattr(one, "placements", None)), []).append(one)
    return list(found.values())


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrices with singular values of about 1, by Newton-Schulz steps in BF16; each one by itself.

    In F32 on a CPU that has no BF16 (neither AVX-512 nor AMX): torch then takes ten times as long for it.
    """
    a, b, c = _COEFFICIENTS
    x = matrices.to(dtype_of(matrices.device), copy=True).view(-1, *matrices.shape[-2:])
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x.div_(x.norm(dim=(-2, -1), keepdim=True).clamp(min=_EPSILON))
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).view(matrices.shape)


def dtype_of(device: torch.device) -> torch.dtype:
    """What ``orthogonal`` computes in."""
    return torch.float32 if emulates_bf16(device) else torch.bfloat16


def emulates_bf16(device: torch.device) -> bool:
    """Whether it has no operations of its own for matrices in BF16."""
    return device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001  # no public name
