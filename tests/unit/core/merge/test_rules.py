"""What every merge rule must pass: a rule that is added to `RULES` is tested here without more."""

from collections.abc import Mapping
from random import Random
from typing import get_args

import pytest
import torch
from torch import Tensor

from diloco.core.merge.codecs import CODECS, codec_named
from diloco.core.merge.merge_weights import normalized
from diloco.core.merge.rules import RULES, rule_named
from diloco.spec.sync import MergeName, SyncSpec
from tests.support.fragment_merge import (
    METHODS,
    Rule,
    backwards,
    contributions_of,
    fragment_of,
    merge_into_zero,
    random,
)

FRAGMENT = fragment_of((90, 40), (300,), (70, 30), (257,), embeddings=[2])
MEMBERS = {f"us/pool/{index}": random(FRAGMENT.numel, seed=index, scale=0.01) for index in range(5)}


def merged(deltas: Mapping[str, Tensor], rule: Rule, order: int = 0) -> Tensor:
    """What ``rule`` makes of members whose weights differ, given in some order."""
    weights = normalized({name: 1.0 + index for index, name in enumerate(deltas)})
    given = contributions_of(deltas, list(weights.values()), rule.codec)
    Random(order).shuffle(given)
    return merge_into_zero(FRAGMENT, given, rule)[0]


def test_the_spec_names_exactly_the_rules_there_are() -> None:
    assert list(get_args(MergeName)) == METHODS
    assert SyncSpec().merge == RULES[0].name
    assert [rule_named(name) for name in METHODS] == list(RULES)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_members_and_blocks_and_a_replay_change_no_bit(method: MergeName, *, bounded: bool) -> None:
    expected = merged(MEMBERS, Rule(method, "BF16", bounded=bounded))
    for order in range(3):
        assert torch.equal(merged(MEMBERS, Rule(method, "BF16", run=backwards, bounded=bounded), order), expected)


@pytest.mark.parametrize("method", METHODS)
def test_members_that_agree_make_what_they_agree_on(method: MergeName) -> None:
    """So the weights sum to one."""
    made = merged(dict.fromkeys(MEMBERS, random(FRAGMENT.numel)), Rule(method))
    torch.testing.assert_close(made, random(FRAGMENT.numel), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("codec", [codec.name for codec in CODECS])
@pytest.mark.parametrize("method", METHODS)
def test_of_one_member_its_own_outer_gradient_is_made_to_the_bit(method: MergeName, codec: str) -> None:
    alone = {"us/pool/0": MEMBERS["us/pool/0"]}
    decoded = torch.empty(FRAGMENT.numel)
    codec_named(codec).decode_into(codec_named(codec).encode(alone["us/pool/0"]), 0, decoded)
    for bounded in (False, True):
        assert torch.equal(merged(alone, Rule(method, codec, bounded=bounded)), decoded)


@pytest.mark.parametrize("scale", [0.0, 1e-35, 1.0, 1e25])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_made_is_finite_and_no_longer_than_the_longest(method: MergeName, scale: float) -> None:
    deltas = {name: values * scale for name, values in MEMBERS.items()}
    made = merged(deltas, Rule(method)).double()
    assert torch.isfinite(made).all()
    assert made.norm() <= 1.001 * max(delta.double().norm() for delta in deltas.values())


@pytest.mark.parametrize("method", METHODS)
def test_beyond_twice_the_median_a_larger_member_moves_no_more(method: MergeName) -> None:
    made = [
        merged(MEMBERS | {"us/pool/4": factor * MEMBERS["us/pool/4"]}, Rule(method, bounded=True))
        for factor in (1.0, 4.0, 15.0)
    ]
    torch.testing.assert_close(made[1], made[2], rtol=1e-4, atol=1e-6)
    assert made[1].norm() < 2.0 * made[0].norm()
