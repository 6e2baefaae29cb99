import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diloco.learner.data import DataError
from diloco.learner.data.opening import batch_size_of, open_data
from tests.support.small_job import small_job, write_text


def entrypoint(name: str, **arguments: object) -> dict[str, Any]:
    data = {"entrypoint": f"tests.support.entrypoints:{name}", "arguments": arguments, "holdoutFraction": 0.1}
    return {"data": data, "model": {"builtin": {"preset": "pico", "vocabularySize": 257}}}


def test_no_training_sequence_touches_the_holdout(tmp_path: Path) -> None:
    job = small_job(write_text(tmp_path))
    data = open_data(job, "here/cpu/0")
    total = len(data.task)
    held_out_from = data.sampler.sequences
    assert held_out_from == total - math.ceil(total / 10)
    assert int(data.sampler.numbers(0, total).max()) == held_out_from - 1
    held = np.concatenate(list(data.holdout.batches()))
    assert (len(held), held.min()) == (6, held_out_from)


def test_learners_have_one_order_and_one_holdout(tmp_path: Path) -> None:
    job = small_job(write_text(tmp_path))
    one, other = (open_data(job, learner) for learner in job.learner_ids)
    assert (one.sampler.numbers(0, 99) == other.sampler.numbers(0, 99)).all()
    assert all(map(np.array_equal, one.holdout.batches(), other.holdout.batches()))


def test_a_pool_may_have_its_own_batch_size() -> None:
    pools = [{"name": "small", "batchSize": 2}, {"name": "usual"}]
    job = small_job(regions=[{"name": "a", "pools": pools}, {"name": "b", "pools": [{"name": "small"}]}])
    assert [batch_size_of(job, learner) for learner in job.learner_ids] == [2, 4, 4]


@pytest.mark.parametrize("short_of", [1, 70])
def test_too_short_data_says_how_many_sequences_are_there_and_needed(short_of: int) -> None:
    enough = 5 * 16 + 1  # a tenth of the sequences is held out, 4 are trained on, and the last has a last target
    open_data(small_job(**entrypoint("counting_source", count=enough)), "here/cpu/0")
    with pytest.raises(DataError) as raised:
        open_data(small_job(**entrypoint("counting_source", count=enough - short_of)), "here/cpu/0")
    assert str(raised.value) == (
        f"data.entrypoint: has {(enough - 1 - short_of) // 16} sequences, at least 5 are needed for a batch of "
        "4 and a holdout of 0.1"
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
