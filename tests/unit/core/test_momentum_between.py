"""The momentum of missing merges: exact after one, and after several nearer to what it was than other guesses."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.merge.outer_optimizer import momentum_between, nesterov_step
from diloco.core.sizes import BLOCK
from diloco.spec.outer_choice import DILOCO
from diloco.spec.sync import OuterOptimizer
from tests.support.examples import examples


def steps(
    parameters: torch.Tensor, momentum: torch.Tensor, gradients: list[torch.Tensor], optimizer: OuterOptimizer
) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters and momentum after these steps."""
    momentum = momentum.clone()
    for gradient in gradients:
        after = gradient.clone()
        nesterov_step(after, parameters, momentum, momentum, optimizer)
        parameters = after
    return parameters, momentum


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative to the expected length."""
    return float((found - expected).norm() / expected.norm())


OPTIMIZERS = st.builds(
    OuterOptimizer,
    learningRate=st.floats(0.05, 2.0, allow_subnormal=False),
    momentum=st.floats(0.0, 0.98, allow_subnormal=False),
)


@settings(max_examples=examples(60))
@given(OPTIMIZERS, st.integers(1, 12), st.integers(0, 10**6))
def test_steps_with_equal_gradients_are_solved_too(optimizer: OuterOptimizer, count: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    before, momentum, gradient = (torch.randn(257, generator=draw) * scale for scale in (0.1, 0.01, 0.01))
    after, expected = steps(before, momentum, [gradient] * count, optimizer)
    assert momentum_between(before, after, momentum, count, optimizer)
    assert error(momentum, expected) < 1e-3


@pytest.mark.parametrize("count", [2, 3, 5, 10])
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_after_several_steps_it_is_nearer_than_other_guesses(count: int, noise: float) -> None:
    """Gradients share a direction and have noise of their own, as outer gradients of successive rounds do."""
    optimizer, draw = DILOCO, torch.Generator().manual_seed(1)
    size = 4096
    drift = torch.randn(size, generator=draw) * 0.01

    def gradients(number: int) -> list[torch.Tensor]:
        return [drift + noise * 0.01 * torch.randn(size, generator=draw) for _ in range(number)]

    start = torch.randn(size, generator=draw) * 0.1
    before, saved = steps(start, torch.zeros(size), gradients(30), optimizer)
    after, expected = steps(before, saved, gradients(count), optimizer)
    found = saved.clone()
    assert momentum_between(before, after, found, count, optimizer)
    others = {"zero": torch.zeros(size), "as saved": saved, "decayed": saved * optimizer.momentum**count}
    assert all(error(found, expected) < error(other, expected) for other in others.values())
    # What counts in the end: where the next steps lead to.
    coming = gradients(10)
    right, _ = steps(after, expected, coming, optimizer)
    led = {name: float((steps(after, other, coming, optimizer)[0] - right).norm()) for name, other in others.items()}
    assert float((steps(after, found, coming, optimizer)[0] - right).norm()) < min(led.values())


def test_blocks_of_a_large_fragment_are_all_solved() -> None:
    draw, optimizer, size = torch.Generator().manual_seed(1), DILOCO, 2 * BLOCK + 5
    before, momentum, gradient = (torch.randn(size, generator=draw) * scale for scale in (0.1, 0.01, 0.01))
    after, expected = steps(before, momentum, [gradient], optimizer)
    assert momentum_between(before, after, momentum, 1, optimizer)
    assert torch.allclose(momentum, expected, atol=1e-6)


def test_what_would_not_be_finite_is_zero() -> None:
    momentum = torch.ones(4)
    huge = torch.full((4,), 3e38)
    slow = OuterOptimizer(learning_rate=math.ldexp(1.0, -10), momentum=0.9)
    assert not momentum_between(huge, -huge, momentum, 1, slow)
    assert torch.equal(momentum, torch.zeros(4))
