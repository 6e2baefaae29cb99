from pathlib import Path
from typing import Any

import pytest

from diloco.learner.data import DataError, batch_size_of, open_data
from tests.support.small_job import small_job, write_text


def entrypoint(name: str, **arguments: object) -> dict[str, Any]:
    data = {"entrypoint": f"tests.support.entrypoints:{name}", "arguments": arguments, "holdoutFraction": 0.1}
    return {"data": data, "model": {"builtin": {"preset": "pico", "vocabularySize": 257}}}


def test_no_training_sequence_touches_the_holdout(tmp_path: Path) -> None:
    job = small_job(write_text(tmp_path))
    data = open_data(job, "here/cpu/0")
    tokens = len(data.source)
    held_out_from = tokens - tokens // 10
    last = int(data.sampler.numbers(0, tokens // 16).max())
    assert last * 16 + 16 < held_out_from
    assert data.holdout.sequences == 6


def test_learners_have_one_order_and_one_holdout(tmp_path: Path) -> None:
    job = small_job(write_text(tmp_path))
    one, other = (open_data(job, learner) for learner in job.learner_ids)
    assert (one.sampler.numbers(0, 99) == other.sampler.numbers(0, 99)).all()
    assert next(iter(one.holdout.batches())).inputs.equal(next(iter(other.holdout.batches())).inputs)


def test_a_pool_may_have_its_own_batch_size() -> None:
    pools = [{"name": "small", "batchSize": 2}, {"name": "usual"}]
    job = small_job(regions=[{"name": "a", "pools": pools}, {"name": "b", "pools": [{"name": "small"}]}])
    assert [batch_size_of(job, learner) for learner in job.learner_ids] == [2, 4, 4]


@pytest.mark.parametrize("short_of", [1, 100])
def test_too_short_data_says_how_many_tokens_are_there_and_needed(short_of: int) -> None:
    enough = 4 * 16 + 1  # batch x sequence, and the last target
    needed = 170  # a tenth of it is the holdout's one sequence and its last target
    assert needed * 0.9 > enough
    open_data(small_job(**entrypoint("counting_source", count=needed)), "here/cpu/0")
    with pytest.raises(DataError) as raised:
        open_data(small_job(**entrypoint("counting_source", count=needed - short_of)), "here/cpu/0")
    assert str(raised.value) == (
        f"data.entrypoint: has {needed - short_of} tokens, at least 170 are needed for a batch of 4 sequences of 16 "
        "and a holdout of 0.1"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("no_module", {}, "data.entrypoint: .* returned a object without vocabulary_size, __len__ and read"),
        ("counting_source", {}, "data.entrypoint: .* raised TypeError"),
        ("counting_source", {"count": -1}, "data.entrypoint: .*counting_source: its length raised ValueError: __len__"),
        ("missing", {}, "data.entrypoint: tests.support.entrypoints has no missing"),
    ],
)
def test_a_wrong_entrypoint_is_one_line(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message) as raised:
        open_data(small_job(**entrypoint(name, **arguments)), "here/cpu/0")
    assert "\n" not in str(raised.value)
