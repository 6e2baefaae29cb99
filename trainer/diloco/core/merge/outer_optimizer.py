"""The outer optimizer: SGD with Nesterov momentum on merged outer gradients, in f32, element by element."""

import math

import torch
from torch import Tensor

from diloco.core.sizes import BLOCK
from diloco.spec.sync import OuterOptimizer


def nesterov_step(
    gradient: Tensor, parameters: Tensor, momentum: Tensor, into: Tensor, optimizer: OuterOptimizer
) -> None:
    """One step; the new parameters replace the gradient, the new momentum goes to ``into``, maybe ``momentum`` itself.

    All are f32, of one shape.

    As ``torch.optim.SGD(nesterov=True)``: ``m' = mu m + g``, ``theta' = theta - lr (g + mu m')``, with ``m = 0`` before
    the first step, which therefore moves by ``lr (1 + mu) g`` (DiLoCo, arXiv 2311.08105). The outer gradient points
    from the learners' parameters back to the old ones, hence the minus.
    """
    mu = optimizer.momentum
    torch.mul(momentum, mu, out=into).add_(gradient)
    gradient.add_(into, alpha=mu)
    torch.add(parameters, gradient, alpha=-optimizer.learning_rate, out=gradient)


def momentum_between(before: Tensor, after: Tensor, momentum: Tensor, steps: int, optimizer: OuterOptimizer) -> bool:
    """The momentum after ``steps`` steps of which only the first and the last parameters are known, in place.

    After one step it is the momentum that the step left, up to rounding: the step can be solved for its gradient. After
    several it is what equal gradients would have left that lead from ``before`` to ``after``: their mean is right, and
    how they differed is not known. ``tests/unit/core/test_momentum_between.py`` compares this with other guesses. All
    tensors are f32, of one shape.

    Returns:
        False if the result would not be finite; ``momentum`` is zero then.
    """
    mu, rate = optimizer.momentum, optimizer.learning_rate
    # m_i = mu^i m_0 + s_i g with s_i = 1 + mu + .. + mu^(i-1); (before - after) / rate = sum of g + mu m_i.
    powers = [mu**i for i in range(steps + 1)]
    sums = [math.fsum(powers[:i]) for i in range(steps + 1)]
    of_gradient = steps + mu * math.fsum(sums[1:])
    of_momentum = mu * math.fsum(powers[1:])
    finite = True
    for start in range(0, momentum.numel(), BLOCK):
        block = slice(start, start + BLOCK)
        moved = torch.sub(before[block], after[block])
        kept = momentum[block].mul_(powers[steps] - sums[steps] * of_momentum / of_gradient)
        kept.add_(moved, alpha=sums[steps] / (of_gradient * rate))
        finite = finite and bool(torch.isfinite(kept).all())
    if not finite:
        momentum.zero_()
    return finite
