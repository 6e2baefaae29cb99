"""The outer optimizer: SGD with Nesterov momentum on merged outer gradients, in f32, element by element."""

import torch
from torch import Tensor

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
