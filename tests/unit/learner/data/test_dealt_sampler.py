from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from diloco.core.dealing.dealer import Piece
from diloco.learner.data import DataError, DealtSampler, Holdout, Sampling
from diloco.learner.data.holdout import check_size
from diloco.learner.data.source import read_into
from diloco.learner.mailboxes.hand import Hand
from tests.support.entrypoints import CountingSource

HUGE = 10**9


def sampler(tokens: int = 1001, batch_size: int = 4, seed: int = 0, hand: Hand | None = None) -> DealtSampler:
    return DealtSampler(CountingSource(tokens, HUGE), tokens, Sampling(batch_size, 10, seed), hand)


def test_an_epoch_takes_every_sequence_once_in_another_order() -> None:
    order = sampler()
    first, second = order.numbers(0, 100).tolist(), order.numbers(100, 200).tolist()
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first != sampler(seed=1).numbers(0, 100).tolist(), "the seed counts too"


def test_any_stretch_is_a_part_of_the_whole_order() -> None:
    order = sampler(tokens=161)
    whole = order.numbers(0, 48).tolist()
    for start in range(48):
        for stop in range(start + 1, 49):
            assert order.numbers(start, stop).tolist() == whole[start:stop]


def test_a_learner_takes_what_it_is_dealt_in_the_order_dealt() -> None:
    learner = sampler(hand=Hand())
    learner.hand.put(Piece(0, 30, 3))
    assert not learner.has(4)
    learner.hand.put(Piece(3, 7, 9))
    assert learner.has(4)
    expected = [*learner.numbers(30, 33), *learner.numbers(7, 8)]
    assert learner.next_numbers(4).tolist() == expected
    assert (learner.began, learner.position) == (30, 4)


def test_a_batch_is_consecutive_tokens_and_their_successors() -> None:
    batch = sampler().next_batch()
    assert batch.inputs.shape == batch.targets.shape == (4, 10)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.targets, batch.inputs + 1)
    assert (batch.inputs[:, 0] % 10 == 0).all()


def test_the_last_sequence_has_its_last_target_within_the_training_tokens() -> None:
    assert sampler(tokens=101, batch_size=10).next_batch().targets.max() == 100


def test_a_sampler_at_a_position_goes_on_as_the_one_that_got_there() -> None:
    one, other = sampler(), sampler()
    for _ in range(30):  # into the second epoch, with batches across its border
        one.next_batch()
    other.seek(one.position)
    assert one.position == 120
    assert torch.equal(one.next_batch().inputs, other.next_batch().inputs)


def test_a_position_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="position is -1"):
        sampler().seek(-1)


def test_data_too_short_for_a_batch_is_refused() -> None:
    assert sampler(41).sequences == 4
    with pytest.raises(DataError, match="40 tokens to train on, but 41 are needed"):
        sampler(40)


@pytest.mark.parametrize(
    ("tokens", "wrong"), [([0, 9], None), ([3, 10], 10), ([-1, 3], -1), ([0, 12], 12), ([-2, 12], -2)]
)
def test_the_id_that_is_outside_the_vocabulary_is_named(tokens: list[int], wrong: int | None) -> None:
    class Source(CountingSource):
        def read(self, start: int, stop: int) -> np.ndarray:
            assert (start, stop) == (5, 7)
            return np.array(tokens)

    out = np.zeros(2, dtype=np.int64)
    if wrong is None:
        read_into(Source(1000, 10), 5, out)
        assert out.tolist() == tokens
    else:
        with pytest.raises(DataError, match=f"^the data has token id {wrong} near token 5, but ids 0 to 9$"):
            read_into(Source(1000, 10), 5, out)


def test_a_source_that_returns_too_little_is_refused() -> None:
    class Short(CountingSource):
        def read(self, start: int, stop: int) -> np.ndarray:
            return super().read(start, stop - 1)

    with pytest.raises(DataError, match=r"returned tokens of shape \(10,\)"):
        DealtSampler(Short(1000), 1000, Sampling(4, 10, 0)).next_batch()


@pytest.mark.parametrize("returned", ["text", [0.5] * 11, ["1"] * 11])
def test_a_source_that_returns_no_token_ids_is_refused(returned: Any) -> None:
    class Odd(CountingSource):
        def read(self, *_: int) -> np.ndarray:
            return returned  # type: ignore[no-any-return]

    with pytest.raises(DataError, match=r"read\(\d+, \d+\) returned tokens of shape .* and type "):
        DealtSampler(Odd(1000), 1000, Sampling(4, 10, 0)).next_batch()


def test_the_holdout_reads_the_same_sequences_spread_over_the_tail() -> None:
    source = CountingSource(2001, HUGE)
    holdout = Holdout(source, 1000, Sampling(4, 10, 0), 6)
    starts = [int(row[0]) for batch in holdout.batches() for row in batch.inputs]
    assert starts == [int(row[0]) for batch in holdout.batches() for row in batch.inputs]
    assert starts == [1000, 1160, 1330, 1500, 1660, 1830]
    assert [len(batch.inputs) for batch in holdout.batches()] == [4, 2]


def test_the_holdout_takes_what_there_is_where_more_is_wanted() -> None:
    holdout = Holdout(CountingSource(1000, HUGE), 950, Sampling(4, 10, 0), 64)
    assert holdout.sequences == 4
    with pytest.raises(DataError, match="10 held-out tokens, but 11 are needed"):
        Holdout(CountingSource(1000), 990, Sampling(4, 10, 0), 64)


@pytest.mark.parametrize(("total", "enough"), [(80, False), (82, True)])
def test_data_must_suffice_for_a_batch_beside_the_holdout(total: int, *, enough: bool) -> None:
    # 4 sequences of 10 tokens and the last target: 41 tokens beside the half that is held out.
    told = f"^data.text: has {total} tokens, at least 82 are needed for a batch of 4"
    with nullcontext() if enough else pytest.raises(DataError, match=told):
        check_size(total, Sampling(4, 10, 0), 0.5, "data.text")
