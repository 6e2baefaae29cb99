import pytest
import torch

from diloco.core.merge.outer_optimizer import nesterov_step
from diloco.spec.sync import OuterOptimizer

STEPS = 300


@pytest.mark.parametrize(("learning_rate", "momentum"), [(0.7, 0.9), (0.4, 0.9), (1.0, 0.5), (0.1, 0.99)])
def test_many_steps_are_those_of_torchs_sgd_with_nesterov(learning_rate: float, momentum: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1000, generator=generator)
    reference = torch.nn.Parameter(start.clone())
    sgd = torch.optim.SGD([reference], lr=learning_rate, momentum=momentum, nesterov=True)
    parameters, buffer = start.clone(), torch.zeros(1000)
    outer = OuterOptimizer(learning_rate=learning_rate, momentum=momentum)
    for _ in range(STEPS):
        gradient = torch.randn(1000, generator=generator) * 1e-2
        reference.grad = gradient.clone()
        sgd.step()
        nesterov_step(gradient, parameters, buffer, buffer, outer)
        parameters = gradient
    assert torch.equal(parameters, reference.detach())


def test_without_momentum_it_is_a_plain_step() -> None:
    gradient, parameters, buffer = torch.tensor([0.25, -1.0]), torch.tensor([1.0, 2.0]), torch.tensor([5.0, 5.0])
    nesterov_step(gradient, parameters, buffer, buffer, OuterOptimizer(learning_rate=0.5, momentum=0.0))
    assert torch.equal(gradient, torch.tensor([0.875, 2.5]))
    assert torch.equal(parameters, torch.tensor([1.0, 2.0]))
