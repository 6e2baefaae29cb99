"""How far members agree with the others, from a sample of each block."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from diloco.core.merge.agreement import SAMPLE
from diloco.core.sizes import BLOCK
from diloco.spec.sync import MergeName
from tests.support.fragment_merge import METHODS, Rule, contributions_of, fragment_of, merge_into_zero, random

SMALL, LARGE = fragment_of((40, 30), (100,)), fragment_of((BLOCK // 2,), (BLOCK + 5,), (300,))


def cosines(deltas: Mapping[str, Tensor], method: MergeName = "RDA") -> Mapping[str, float]:
    fragment = SMALL if len(next(iter(deltas.values()))) == SMALL.numel else LARGE
    return merge_into_zero(fragment, contributions_of(deltas), Rule(method, bounded=True))[1].cosines


@pytest.mark.parametrize("method", METHODS)
def test_all_of_a_small_fragment_is_looked_at(method: MergeName) -> None:
    assert SMALL.numel < SAMPLE
    one, another = random(SMALL.numel, seed=1), random(SMALL.numel, seed=2)
    found = cosines({"a": one, "b": one, "c": another}, method)
    assert found["a"] == pytest.approx(found["b"], abs=1e-6)
    assert found["a"] == pytest.approx((0.5) ** 0.5, abs=0.05)
    assert found["c"] == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("size", [SMALL.numel, LARGE.numel])
def test_one_that_is_turned_round_is_against_the_others(size: int) -> None:
    shared = random(size, seed=9)
    honest = {name: shared + 0.5 * random(size, seed=seed) for seed, name in enumerate("abcd")}
    found = cosines(honest | {"liar": -(shared + 0.5 * random(size, seed=7))})
    assert found["liar"] < -0.5
    assert min(found[name] for name in honest) > 0.3


def test_a_sample_tells_nearly_what_all_values_would() -> None:
    first, second, third = (random(LARGE.numel, seed=seed) for seed in (1, 2, 3))
    deltas = {"a": first, "b": 0.6 * first + 0.8 * second, "c": third}
    expected = torch.nn.functional.cosine_similarity(first, deltas["b"] + deltas["c"], dim=0).item()
    assert cosines(deltas)["a"] == pytest.approx(expected, abs=0.03)


def test_a_single_member_and_zeros_have_none() -> None:
    assert cosines({"a": random(SMALL.numel, scale=0.01)}) == {}
    assert cosines({"a": random(SMALL.numel, scale=0.01), "b": torch.zeros(SMALL.numel)}) == {}
