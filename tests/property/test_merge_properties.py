"""A merge's bits do not depend on the order of its members or on how the work is divided."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diloco.core.merge.codecs import CODECS
from diloco.core.merge.fragment_merge import Pass
from diloco.core.merge.merge_weights import normalized
from diloco.core.sizes import BLOCK
from diloco.spec.sync import MergeName, OuterOptimizer
from diloco.syncer.block_threads import BlockThreads
from tests.support.fragment_merge import METHODS, Rule, contributions_of, fragment_of, merge_into_zero

NAMES = [codec.name for codec in CODECS]

# Tensors that end within blocks, span several, and share one; an embedding across a border.
LARGE = fragment_of((BLOCK // 2 + 1,), (513, 1025), (7,), (600, 1000), (3, 5), embeddings=[3])


def random_deltas(numel: int, learners: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"us/pool/{index}": torch.randn(numel, generator=generator) for index in range(learners)}


@given(
    st.integers(2, 6), st.permutations(range(6)), st.sampled_from(METHODS), st.sampled_from(NAMES), st.integers(0, 99)
)
def test_the_order_of_members_changes_no_bit(
    learners: int, order: list[int], method: MergeName, codec: str, seed: int
) -> None:
    fragment = fragment_of((20, 11), (30,), (40,), embeddings=[2])
    weights = normalized({f"us/pool/{index}": index + 0.1 for index in range(learners)})
    contributions = contributions_of(
        random_deltas(fragment.numel, learners, seed), [weights[f"us/pool/{index}"] for index in range(learners)], codec
    )
    shuffled = [contributions[index] for index in order if index < learners]
    first = merge_into_zero(fragment, contributions, Rule(method, codec))
    second = merge_into_zero(fragment, shuffled, Rule(method, codec, bounded=True))
    # The bound, too, changes no bit of what is merged.
    assert torch.equal(first[0], second[0])
    assert replace(first[1], verdict=second[1].verdict) == second[1]
    assert second[1].verdict.left_out == {}


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_cutting_a_merge_into_shards_changes_no_bit(method: MergeName, codec: str) -> None:
    contributions = contributions_of(random_deltas(LARGE.numel, 3, 1), [0.5, 0.2, 0.3], codec)
    outer = OuterOptimizer(learning_rate=0.7, momentum=0.9)

    def shards(one_pass: Pass, blocks: Iterable[int]) -> None:
        shuffled = list(blocks)
        Random(codec).shuffle(shuffled)
        for block in shuffled:
            one_pass([block])

    with torch_threads(1):
        expected, statistics = merge_into_zero(LARGE, contributions, Rule(method, codec, outer))
        results = [merge_into_zero(LARGE, contributions, Rule(method, codec, outer, shards))]
    for threads in (2, 3):
        with torch_threads(threads):
            results.append(merge_into_zero(LARGE, contributions, Rule(method, codec, outer)))
            pool = BlockThreads(threads)
            results.append(merge_into_zero(LARGE, contributions, Rule(method, codec, outer, pool)))
            pool.close()
    for merged, shown in results:
        assert torch.equal(merged, expected)
        assert shown == statistics


@given(st.dictionaries(st.text(min_size=1), st.floats(0, 1e12), min_size=1).filter(lambda w: sum(w.values()) > 0))
def test_weights_sum_to_one(weights: dict[str, float]) -> None:
    shares = normalized(weights)
    assert abs(sum(shares.values()) - 1) < 1e-9
    assert all(0 <= share <= 1 for share in shares.values())
    assert normalized(dict(reversed(weights.items()))) == shares
