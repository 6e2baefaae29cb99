"""Learners of several processes."""

from typing import Any

import pytest

from diloco.spec.placement import Pool
from diloco.spec.reading.load import job_from
from tests.support.job_manifests import changed


@pytest.mark.parametrize(
    ("pool", "processes", "ranks"),
    [
        ({}, 1, 1),
        ({"resources": {"limits": {"cpu": "8", "nvidia.com/gpu": "4", "amd.com/gpu": "2"}}}, 6, 6),
        ({"resources": {"limits": {"nvidia.com/gpu": "0"}}}, 1, 1),
        ({"resources": {"limits": {"nvidia.com/gpu": "8"}}, "processesPerNode": 2, "nodesPerLearner": 3}, 2, 6),
    ],
    ids=["one by default", "the accelerators in the limits", "none of them", "as given, on each node"],
)
def test_a_pool_says_how_many_processes_a_learner_has(pool: dict[str, Any], processes: int, ranks: int) -> None:
    made = Pool.model_validate({"name": "a", **pool})
    assert (made.processes, made.ranks) == (processes, ranks)


def test_a_batch_need_not_be_divisible_for_ones_own_parallelism() -> None:
    wanted = {"spec.regions.0.pools.0.processesPerNode": 3, "spec.model.parallelize": "mine.model:parallelize"}
    assert job_from(changed(wanted)).spec.regions[0].pools[0].ranks == 3


def test_learners_of_one_node_may_be_kept_together() -> None:
    pool = job_from(changed({"spec.regions.0.pools.0.topologyKey": "example.com/rack"})).spec.regions[0].pools[0]
    assert (pool.nodes_per_learner, pool.topology_key) == (1, "example.com/rack")
