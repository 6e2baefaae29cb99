"""How a merge processes its blocks: what it reads, how much memory it needs, and how it computes sums."""

import math

import pytest
import torch
from torch import Tensor

from diloco.core.fragments import Fragment
from diloco.core.merge.fragment_merge import MergeTarget
from diloco.core.sizes import BLOCK
from diloco.spec.sync import OuterOptimizer
from tests.support.fragment_merge import (
    Rule,
    WatchedCodec,
    backwards,
    contributions_of,
    fragment_of,
    merge,
    merge_into_zero,
    random,
)

LARGE = fragment_of((BLOCK // 2,), (3 * BLOCK // 2 + 5,), (3, 7), (1000,), embeddings=[2])
"""Two blocks and a part of one; the first tensor ends within one."""
WEIGHTS = [0.5, 0.3, 0.2]


def watched_merge(fragment: Fragment, members: int, rule: Rule) -> list[Tensor]:
    """The buffers into which a merge decoded payloads."""
    codec = WatchedCodec()
    deltas = {f"{index}": random(fragment.numel, seed=index, scale=0.1) for index in range(members)}
    merge(fragment, contributions_of(deltas, codec="BF16"), rule, codec=codec)
    return codec.buffers


def reference(deltas: list[Tensor]) -> tuple[Tensor, float]:
    """The RDA of `LARGE`, in f64, and the mean agreement of the tensors merged by direction."""
    made, agreed = torch.empty(LARGE.numel, dtype=torch.float64), []
    for slot in LARGE.slots:
        within = slice(slot.offset, slot.offset + slot.tensor.numel)
        parts = [delta[within].double() for delta in deltas]
        if slot.tensor.embedding:
            made[within] = sum(weight * part for weight, part in zip(WEIGHTS, parts, strict=True))
            continue
        norm = sum(weight * part.norm() for weight, part in zip(WEIGHTS, parts, strict=True))
        direction = torch.zeros_like(parts[0])
        for weight, part in zip(WEIGHTS, parts, strict=True):
            direction += weight * part / part.norm()
        made[within] = norm * direction / direction.norm()
        agreed.append((direction.norm().item(), slot.tensor.numel))
    return made, sum(one * numel for one, numel in agreed) / sum(numel for _, numel in agreed)


@pytest.mark.parametrize("bounded", [False, True])
def test_several_blocks_are_merged_and_stepped_once_each(*, bounded: bool) -> None:
    numel = LARGE.numel
    deltas = [random(numel, seed=seed, scale=1.3**-seed) for seed in range(3)]
    parameters, before = random(numel, seed=8), random(numel, seed=9)
    momentum = before.clone()
    into, statistics = merge(
        LARGE,
        contributions_of(dict(zip("abc", deltas, strict=True)), WEIGHTS),
        Rule(outer=OuterOptimizer(learning_rate=0.7, momentum=0.9), run=backwards, bounded=bounded),
        parameters=parameters,
        momentum=momentum,
        into=MergeTarget(torch.empty(numel), momentum),
    )
    gradient, agreement = reference(deltas)
    expected = 0.9 * before.double() + gradient
    torch.testing.assert_close(into.momentum, expected.float(), rtol=1e-5, atol=1e-5)
    stepped = parameters.double() - 0.7 * (gradient + 0.9 * expected)
    torch.testing.assert_close(into.parameters, stepped.float(), rtol=1e-5, atol=1e-5)
    assert statistics.gradient_norm == pytest.approx(gradient.norm().item(), rel=1e-6)
    assert statistics.agreement == pytest.approx(agreement, rel=1e-6)


@pytest.mark.parametrize(("fragment", "numel"), [(LARGE, BLOCK), (fragment_of((10,)), 10)])
def test_beside_its_tensors_a_merge_needs_one_block_at_most_in_each_pass(fragment: Fragment, numel: int) -> None:
    assert {buffer.untyped_storage().nbytes() for buffer in watched_merge(fragment, 2, Rule())} == {4 * numel}


@pytest.mark.parametrize(
    ("members", "rule", "times"),
    [
        (1, Rule("RDA"), 1),
        (1, Rule("RDA", bounded=True), 1),
        (3, Rule("Mean"), 2),
        (3, Rule("Mean", bounded=True), 2),
        (3, Rule("RDA"), 2),
    ],
)
def test_payloads_are_read_for_norms_only_where_norms_are_needed(members: int, rule: Rule, times: int) -> None:
    assert len(watched_merge(LARGE, members, rule)) == times * members * 3


@pytest.mark.parametrize("exponent", [-30, 0, 45, -40, 49])
def test_squares_are_added_in_f32_by_rows_of_4096_as_old_tapes_have_it(exponent: int) -> None:
    unit = 2.0**exponent
    in_one_row, in_two_rows = torch.zeros(3 * 4096), torch.zeros(3 * 4096)
    in_one_row[[4096, 8191]] = torch.tensor([unit, 2 * unit])
    in_two_rows[[4095, 4096]] = torch.tensor([unit, 2 * unit])
    # Beyond the range of f32's squares the sum is made in f64 throughout.
    rounded = 1e-20 < 5 * unit**2 < 1e30
    expected = torch.tensor(math.sqrt(5.0)).item() if rounded else math.sqrt(5.0)
    for values, norm in ((in_one_row, expected), (in_two_rows, math.sqrt(5.0))):
        _, statistics = merge_into_zero(fragment_of((3 * 4096,)), contributions_of({"a": values}))
        assert statistics.gradient_norm == pytest.approx(norm * unit, rel=1e-15, abs=0)


def test_elements_beyond_the_last_whole_row_are_added_too() -> None:
    for numel in (1, 4095, 4096, 4097):
        _, statistics = merge_into_zero(fragment_of((numel,)), contributions_of({"a": torch.full((numel,), 3.0)}))
        assert statistics.gradient_norm == pytest.approx(3.0 * math.sqrt(numel), rel=1e-6)
