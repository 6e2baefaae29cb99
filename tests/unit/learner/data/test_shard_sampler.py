from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from diloco.learner.data import DataError, Holdout, Shard, ShardSampler
from diloco.learner.data.holdout import check_size
from diloco.learner.data.source import read_into
from diloco.learner.data.task import LanguageModel
from tests.support.entrypoints import CountingSource

HUGE = 10**9


def sampler(index: int = 0, count: int = 1, sequences: int = 100, batch_size: int = 4, seed: int = 0) -> ShardSampler:
    return ShardSampler(sequences, Shard(index, count, batch_size, seed))


def batch_of(source: CountingSource, *numbers: int) -> Mapping[str, Tensor]:
    return LanguageModel(source, 10, "data").batch(np.array(numbers))


def size_of(sampler: ShardSampler) -> int:
    """Sequences that it takes before one repeats."""
    taken: set[int] = set()
    while (following := int(sampler.sequences(len(taken), len(taken) + 1)[0])) not in taken:
        taken.add(following)
    return len(taken)


@given(count=st.integers(1, 7), sequences=st.integers(7, 200), seed=st.integers(0, 3))
def test_shards_share_nothing_and_leave_nothing_out(count: int, sequences: int, seed: int) -> None:
    shards = [sampler(index, count, sequences, 1, seed) for index in range(count)]
    taken = np.concatenate([shard.sequences(0, size_of(shard)) for shard in shards])
    assert np.array_equal(np.sort(taken), np.arange(sequences))


def test_an_epoch_takes_the_same_sequences_in_another_order() -> None:
    shard = sampler(1, 3)
    size = size_of(shard)
    first, second = shard.sequences(0, size), shard.sequences(size, 2 * size)
    assert sorted(first) == sorted(second)
    assert list(first) != list(second)
    assert list(first) != list(sampler(1, 3, seed=1).sequences(0, size)), "the seed counts too"


def test_any_stretch_is_a_part_of_the_whole_order() -> None:
    shard = sampler(1, 3, sequences=16)
    size = size_of(shard)
    whole = shard.sequences(0, 3 * size).tolist()
    assert len(whole) == 3 * size
    for start in range(3 * size):
        for stop in range(start + 1, 3 * size + 1):
            assert shard.sequences(start, stop).tolist() == whole[start:stop]


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
    one, other = sampler(1, 2), sampler(1, 2)
    for _ in range(30):  # into the third epoch, with batches across its border
        one.next_numbers()
    other.seek(one.position)
    assert one.position == 120
    assert np.array_equal(one.next_numbers(), other.next_numbers())


def test_a_position_cannot_be_negative() -> None:
    with pytest.raises(ValueError, match="position is -1"):
        sampler().seek(-1)


def test_data_too_short_for_a_batch_in_every_shard_is_refused() -> None:
    assert size_of(sampler(0, 5, 20)) == 4
    with pytest.raises(DataError, match="19 sequences to train on, but 20 are needed"):
        sampler(0, 5, 19)


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


@pytest.mark.parametrize(("total", "enough"), [(14, False), (15, True)])
def test_data_must_suffice_for_every_shard_beside_the_holdout(total: int, *, enough: bool) -> None:
    # 2 x 4 sequences beside the half that is held out, which is rounded down.
    task = LanguageModel(CountingSource(10 * total + 1), 10, "data.text")
    told = f"^data.text: has {total} sequences, at least 16 are needed for 2 learners x 4 sequences"
    with nullcontext() if enough else pytest.raises(DataError, match=told):
        check_size(task, Shard(0, 2, 4, 0), 0.5)
