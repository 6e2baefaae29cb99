"""The outer optimizer: SGD with Nesterov momentum on merged outer gradients, in f32, element by element."""

import torch
from torch import Tensor

from diloco.spec.sync import OuterOptimizer


def nesterov_step(gradient: Tensor, parameters: Tensor, momentum: Tensor, optimizer: OuterOptimizer) -> None:
    """One step; the new parameters replace the gradient, the new momentum replaces the old one.

    As ``torch.optim.SGD(nesterov=True)``: ``m' = mu m + g``, ``theta' = theta - lr (g + mu m')``, with ``m = 0`` before
    the first step, which therefore moves by ``lr (1 + mu) g`` (DiLoCo, arXiv 2311.08105). The outer gradient points
    from the learners' parameters back to the old ones, hence the minus.

    Args:
        gradient: f32, merged outer gradient; overwritten with the new parameters.
        parameters: f32, same shape; not changed.
        momentum: f32, same shape; overwritten with the new momentum.
        optimizer: learning rate and mu.
    """
    mu = optimizer.momentum
    momentum.mul_(mu).add_(gradient)
    gradient.add_(momentum, alpha=mu)
    torch.add(parameters, gradient, alpha=-optimizer.learning_rate, out=gradient)
