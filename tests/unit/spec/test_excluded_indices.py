"""Learners that a pool leaves out by index."""

from diloco.spec import JobSpec
from diloco.spec.reading.load import job_from
from tests.support.operator_scene import manifest


def spec_with(learners: int, excluded: list[int], **pool: object) -> JobSpec:
    body = manifest("small", pools={"east": {"a": learners}, "west": {"b": 1}})
    body["spec"]["regions"][0]["pools"][0] |= {"excludedIndices": excluded, **pool}
    return job_from(body).spec


def test_the_others_keep_their_indices() -> None:
    spec = spec_with(5, [3, 0])
    assert spec.learner_ids == ("east/a/1", "east/a/2", "east/a/4", "west/b/0")
    pool = spec.regions[0].pools[0]
    assert (pool.indices, pool.size) == ((1, 2, 4), 3)


def test_a_pool_is_elastic_by_the_learners_it_has() -> None:
    assert not spec_with(3, [1], minimumLearners=2).regions[0].pools[0].elastic
    assert spec_with(3, [1], minimumLearners=1).regions[0].pools[0].elastic


def test_all_may_be_left_out_but_not_of_all_pools() -> None:
    assert spec_with(1, [0]).learner_ids == ("west/b/0",)
