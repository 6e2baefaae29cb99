"""Which parameters cannot be trained on."""

import math

import pytest
import torch

from diloco.core.finite_check import problem_with


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e20, -1e20])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_value_that_cannot_be_trained_is_found_wherever_it_is(bad: float, place: int) -> None:
    values = torch.randn(1000)
    values[place] = bad
    assert problem_with(values) is not None


def test_what_training_makes_is_taken() -> None:
    assert problem_with(torch.randn(1000) * 1e4) is None
    assert problem_with(torch.zeros(3)) is None
    assert problem_with(torch.empty(0)) is None


@pytest.mark.parametrize("sign", [1, -1])
def test_two_to_the_fortieth_is_the_largest_value_that_is_taken(sign: int) -> None:
    largest = torch.tensor([0.0, sign * 2.0**40])
    assert problem_with(largest) is None
    assert problem_with(largest * (1 + 2**-20)) is not None
