"""What a step of a learner of several processes sends, counted without the others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diloco.learner.data.opening import open_data
from diloco.learner.training.gradients import backpropagate
from diloco.learner.unit.sharding import parted_model
from diloco.model.build import build_model
from diloco.model.fragments import trained_parameters
from diloco.spec import JobSpec
from testbed.fake_world import Counted, fake_world
from testbed.units import of_one
from tests.support.units import job_of

CPU = torch.device("cpu")


RANKS = 8
NODES = {"HSDP": 2}


def counted(text: Path, parallelism: str, memory_bytes: int = 80 * 10**9, **training: Any) -> tuple[Counted, int]:
    """What the second of two steps of 4 micro-batches sends, and the number of parameters."""
    ranks, nodes = RANKS, NODES.get(parallelism, 1)
    training = {"batchSize": 4 * ranks, "microBatchSize": 1, **training}
    pool = {"processesPerNode": ranks // nodes, "nodesPerLearner": nodes, "parallelism": parallelism}
    spec = JobSpec.model_validate(of_one(job_of(text, training=training), pool))
    with fake_world(ranks, CPU, memory_bytes) as world:
        parted = parted_model(spec, spec.regions[0].pools[0], world, build_model(spec))
        task = open_data(spec, spec.learner_ids[0]).task
        seen = Counted()
        for _ in range(2):
            seen = Counted()
            with seen:
                backpropagate(parted.module, task, np.arange(4 * ranks), spec.training, parted.share)
            parted.module.zero_grad()
    return seen, sum(one.numel() for one in trained_parameters(parted.module).values())


def test_fsdp_gathers_bf16_and_sums_micro_batches_once(text: Path) -> None:
    seen, numel = counted(text, "FSDP", precision="BF16")
    # For a forward and a backward pass each; what is in no block is kept from one to the other.
    assert 14 * numel < sum(seen.moved["gathered"]) < 4 * (2 + 2) * numel
    assert sum(seen.moved["reduced"]) == pytest.approx(4 * numel, rel=0.01)
    assert seen.moved["all-reduced"] == [12]
    assert seen.host_reads == 0


def test_fsdp_sums_each_part_where_whole_gradients_do_not_fit(text: Path) -> None:
    seen, numel = counted(text, "FSDP", memory_bytes=1000)
    assert sum(seen.moved["reduced"]) == pytest.approx(4 * 4 * numel, rel=0.01)
    assert seen.moved["all-reduced"] == [12]


@pytest.mark.parametrize(("memory_bytes", "times"), [(1 << 40, 1), (1000, 4)], ids=["kept whole", "kept in parts"])
def test_hsdp_sums_parts_over_the_nodes_once(text: Path, memory_bytes: int, times: int) -> None:
    seen, numel = counted(text, "HSDP", memory_bytes)
    assert sum(seen.moved["reduced"]) == pytest.approx(times * 4 * numel, rel=0.01)
    *parts, scalars = seen.moved["all-reduced"]
    assert sum(parts) == pytest.approx(4 * numel * NODES["HSDP"] / RANKS, rel=0.01)
    assert scalars == 12


def test_copies_sum_micro_batches_once_in_buckets(text: Path) -> None:
    seen, numel = counted(text, "DDP")
    *buckets, scalars = seen.moved["all-reduced"]
    assert seen.moved.keys() == {"all-reduced"}
    assert sum(buckets) == pytest.approx(4 * numel, rel=0.01)
    assert len(buckets) == 1
    assert scalars == 12
    assert seen.host_reads == 0
