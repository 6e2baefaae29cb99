from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.spec import DiLoCoJob
from support.quality.baselines import alone, data_parallel
from tests.support.small_job import named_job, small_job, write_text

STEP_TOKENS = 4 * 16


def job(folder: Path, learners: int, steps: int, **changes: Any) -> DiLoCoJob:
    training = {
        "tokens": steps * learners * STEP_TOKENS,
        "sequenceLength": 16,
        "batchSize": 4,
        "optimizer": {"learningRate": 3e-3, "warmupSteps": 4},
        "evaluation": {"sequences": 6},
    }
    spec = small_job(write_text(folder), learners, training=training, **changes)
    return named_job("base", spec)


def test_data_parallel_trains_on_the_whole_budget_in_a_learners_steps(tmp_path: Path) -> None:
    result = data_parallel(job(tmp_path, learners=3, steps=30))
    assert (result.steps, result.trained_tokens) == (30, 30 * 3 * STEP_TOKENS)
    assert result.loss < 0.9 * result.loss_start


def test_a_watch_reads_the_model_after_each_step(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []
    result = data_parallel(job(tmp_path, learners=2, steps=3), watch=lambda read: seen.append(read()))
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1])
    assert result.loss_of(seen[-1]) == result.loss < result.loss_of(seen[0])


def test_alone_has_one_learners_share_of_the_budget(tmp_path: Path) -> None:
    result = alone(job(tmp_path, learners=3, steps=30))
    assert (result.steps, result.trained_tokens) == (30, 30 * STEP_TOKENS)


def test_of_one_learner_both_are_the_same(tmp_path: Path) -> None:
    one = job(tmp_path, learners=1, steps=10)
    assert alone(one) == data_parallel(one)


def test_pools_of_different_batch_size_are_refused(tmp_path: Path) -> None:
    regions = [{"name": "here", "pools": [{"name": "small", "batchSize": 2}, {"name": "usual"}]}]
    with pytest.raises(ValueError, match=r"batch sizes are \[2, 4\]"):
        data_parallel(job(tmp_path, learners=2, steps=1, regions=regions))
