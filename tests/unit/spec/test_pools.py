from typing import Any

import pytest

from diloco.spec.placement import Pool
from diloco.spec.reading.load import job_from
from tests.support.job_manifests import changed


def pool(**fields: Any) -> Pool:
    return Pool.model_validate({"name": "a", **fields})


def test_learners_beside_those_that_are_left_out_keep_their_indices() -> None:
    some = pool(learners=5, excludedIndices=[3, 0])
    assert (some.indices, some.size) == ((1, 2, 4), 3)
    wanted = {"spec.regions.0.pools.0": {"name": "new", "learners": 3, "excludedIndices": [1]}}
    wanted["spec.regions.0.pools.1"] = {"name": "old", "excludedIndices": [0]}
    assert job_from(changed(wanted)).spec.learner_ids == ("us-east/new/0", "us-east/new/2", "us-west/old/0")


@pytest.mark.parametrize(("minimum", "elastic"), [(2, False), (1, True)])
def test_a_pool_is_elastic_by_the_learners_it_has(minimum: int, elastic: bool) -> None:
    assert pool(learners=3, excludedIndices=[1], minimumLearners=minimum).elastic == elastic


@pytest.mark.parametrize(
    ("fields", "processes", "ranks"),
    [
        ({}, 1, 1),
        ({"resources": {"limits": {"cpu": "8", "nvidia.com/gpu": "4", "amd.com/gpu": "2"}}}, 6, 6),
        ({"resources": {"limits": {"nvidia.com/gpu": "0"}}}, 1, 1),
        ({"resources": {"limits": {"nvidia.com/gpu": "8"}}, "processesPerNode": 2, "nodesPerLearner": 3}, 2, 6),
    ],
    ids=["one by default", "the accelerators in the limits", "none of them", "as given, on each node"],
)
def test_a_pool_says_how_many_processes_a_learner_has(fields: dict[str, Any], processes: int, ranks: int) -> None:
    assert (pool(**fields).processes, pool(**fields).ranks) == (processes, ranks)


def test_a_batch_need_not_be_divisible_for_ones_own_parallelism() -> None:
    wanted = {"spec.regions.0.pools.0.processesPerNode": 3, "spec.model.parallelize": "mine.model:parallelize"}
    assert job_from(changed(wanted)).spec.regions[0].pools[0].ranks == 3


def test_learners_of_one_node_may_be_kept_together() -> None:
    found = job_from(changed({"spec.regions.0.pools.0.topologyKey": "example.com/rack"})).spec.regions[0].pools[0]
    assert (found.nodes_per_learner, found.topology_key) == (1, "example.com/rack")
