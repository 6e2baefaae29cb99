from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from diloco.core.dealing.pieces import Piece
from diloco.learner.data import DataError
from diloco.learner.data.holdout import Holdout, check_size
from diloco.learner.data.sampler import DealtSampler, Hand, Sampling
from diloco.learner.data.source import read_into
from diloco.learner.data.task import LanguageModel
from tests.support.entrypoints import CountingSource

HUGE = 10**9


def sampler(sequences: int = 100, batch_size: int = 4, seed: int = 0, hand: Hand | None = None) -> DealtSampler:
    return DealtSampler(sequences, Sampling(batch_size, seed), hand)


def batch_of(source: CountingSource, *numbers: int) -> Mapping[str, Tensor]:
    return LanguageModel(source, 10, "data").batch(np.array(numbers))


def test_an_epoch_takes_every_sequence_once_in_another_order() -> None:
    order = sampler()
    first, second = order.numbers(0, 100).tolist(), order.numbers(100, 200).tolist()
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first != sampler(seed=1).numbers(0, 100).tolist(), "the seed counts too"


def test_any_stretch_is_a_part_of_the_whole_order() -> None:
    order = sampler(16)
    whole = order.numbers(0, 48).tolist()
    for start in range(48):
        for stop in range(start + 1, 49):
            assert order.numbers(start, stop).tolist() == whole[start:stop]


def test_a_learner_takes_what_it_is_dealt_in_the_order_dealt() -> None:
    learner = sampler(hand=Hand())
    learner.hand.put(Piece(0, 30, 3))
    assert not learner.has_batch()
    learner.hand.put(Piece(3, 7, 9))
    assert learner.has_batch()
    expected = [*learner.numbers(30, 33), *learner.numbers(7, 8)]
    assert learner.next_numbers().tolist() == expected
    assert (learner.began, learner.position) == (30, 4)


def test_a_batch_is_consecutive_tokens_and_their_successors() -> None:
    batch = batch_of(CountingSource(101, HUGE), 0, 9, 4)
    assert batch["inputs"].shape == batch["targets"].shape == (3, 10)
    assert batch["inputs"].dtype == batch["targets"].dtype == torch.int64
    assert torch.equal(batch["targets"], batch["inputs"] + 1)
    assert batch["inputs"][:, 0].tolist() == [0, 90, 40]


@pytest.mark.parametrize(("tokens", "sequences"), [(0, 0), (1, 0), (100, 9), (101, 10)])
def test_the_last_sequence_has_its_last_target_within_the_data(tokens: int, sequences: int) -> None:
    assert len(LanguageModel(CountingSource(tokens), 10, "data")) == sequences


def test_a_sampler_at_a_position_goes_on_as_the_one_that_got_there() -> None:
    one, other = sampler(), sampler()
    for _ in range(30):  # into the second epoch, with batches across its border
        one.next_numbers()
    other.seek(one.position)
    assert one.position == 120
    assert np.array_equal(one.next_numbers(), other.next_numbers())


def test_a_position_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="position is -1"):
        sampler().seek(-1)


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
        batch_of(Short(1000), 3)


@pytest.mark.parametrize("returned", ["text", [0.5] * 11, ["1"] * 11])
def test_a_source_that_returns_no_token_ids_is_refused(returned: Any) -> None:
    class Odd(CountingSource):
        def read(self, *_: int) -> np.ndarray:
            return returned  # type: ignore[no-any-return]

    with pytest.raises(DataError, match=r"read\(\d+, \d+\) returned tokens of shape .* and type "):
        batch_of(Odd(1000), 3)


def test_the_holdout_reads_the_same_sequences_spread_over_the_tail() -> None:
    holdout = Holdout(100, 200, 4, 6)
    batches = [numbers.tolist() for numbers in holdout.batches()]
    assert batches == [numbers.tolist() for numbers in holdout.batches()] == [[100, 116, 133, 150], [166, 183]]


def test_the_holdout_takes_what_there_is_where_more_is_wanted() -> None:
    assert Holdout(95, 99, 4, 64).sequences == 4
    with pytest.raises(DataError, match="no held-out sequence, but 1 is needed"):
        Holdout(99, 99, 4, 64)


@pytest.mark.parametrize(("total", "enough"), [(7, False), (8, True)])
def test_data_must_suffice_for_a_batch_beside_the_holdout(total: int, *, enough: bool) -> None:
    task = LanguageModel(CountingSource(10 * total + 1), 10, "data.text")
    told = f"^data.text: has {total} sequences, at least 8 are needed for a batch of 4 and a holdout of 0.5$"
    with nullcontext() if enough else pytest.raises(DataError, match=told):
        check_size(task, 4, 0.5)
