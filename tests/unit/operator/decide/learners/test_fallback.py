import json
from datetime import timedelta
from typing import Any

import pytest

from diloco.spec.checks import MAXIMUM_LEARNERS
from diloco.spec.reading.load import job_from
from diloco_operator.decide.learners.fallback import with_all_fallbacks, with_more
from diloco_operator.decide.observed import Object
from diloco_operator.manifests.documents import job_text
from diloco_operator.names import PoolKey
from testbed.virtual_cluster.namespace import START
from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import crashed, unschedulable
from tests.unit.operator.decide.training_world import degraded

NO_NODE = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu"
SPOT, STEADY = "demo--us-west-spot-", "demo--us-west-steady-"


def no_node(at: float = 0.0) -> Object:
    """The status of a pod that the scheduler found no node for, so many seconds after the start."""
    status = unschedulable(NO_NODE)
    status["conditions"][0]["lastTransitionTime"] = (START + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return status


def regions(**spot: Any) -> list[dict[str, Any]]:
    pools = [{"name": "spot", "learners": 2, "fallbackAfterSeconds": 120} | spot, {"name": "steady", "learners": 1}]
    return [{"name": "us-east", "pools": [{"name": "new"}]}, {"name": "us-west", "pools": pools}]


def world_with(*troubles: Object, **spot: Any) -> World:
    """A job whose pods of the pool spot have these troubles from the first on."""
    world = World(job=job_object(tokens=100_000_000, regions=regions(**spot)))
    world.pods.troubles |= {f"{SPOT}{index}": trouble for index, trouble in enumerate(troubles)}
    return world


def pools(world: World) -> dict[str, tuple[int, int, int | None]]:
    """By pool of us-west: learners that are wanted, that train, and that run elsewhere."""
    return {
        pool["name"]: (pool["desired"], pool["training"], pool.get("fallbackLearners"))
        for pool in world.status["regions"][1]["pools"]
    }


def said(world: World) -> list[str]:
    return [event.message for event in world.events if event.reason == "FallbackChanged"]


def test_after_a_while_they_start_in_the_next_pool_and_then_move_back() -> None:
    w = world_with(no_node(), no_node())
    w.run(100)
    assert pools(w) == {"spot": (2, 0, None), "steady": (1, 1, None)}
    assert degraded(w)[:2] == ("True", "Unschedulable")
    w.run(100)
    assert pools(w) == {"spot": (2, 0, 2), "steady": (3, 3, None)}
    assert degraded(w) == ("False", "AsExpected", "")
    assert w.status["learners"]["summary"] == "4/4"
    assert w.condition("Ready")["message"] == "4 of 4 learners train"
    assert said(w) == ["2 learners of us-west/spot run in the next pool (before: 0)"]
    settled = w.home.writes, w.status_writes
    w.run(10)
    # Nothing but progress is written while they wait.
    assert (w.home.writes, w.status_writes <= settled[1] + 1) == (settled[0], True)
    w.pods.troubles[f"{SPOT}0"] = crashed(1, "ValueError: x")
    w.run(60)
    assert pools(w)["steady"] == (3, 3, None), "one that has a node is replaced only when it works"
    del w.pods.troubles[f"{SPOT}0"]
    w.run(60)
    assert pools(w) == {"spot": (2, 1, 1), "steady": (2, 2, None)}
    w.pods.troubles.clear()
    w.run(60)
    assert pools(w) == {"spot": (2, 2, None), "steady": (1, 1, None)}
    assert said(w)[1:] == [
        "1 learners of us-west/spot run in the next pool (before: 2)",
        "0 learners of us-west/spot run in the next pool (before: 1)",
    ]
    assert w.pods_of("learner") == sorted(["demo--us-east-new-0", f"{SPOT}0", f"{SPOT}1", f"{STEADY}0"])


def test_the_syncer_knows_them_and_the_processes_nothing_of_the_rest() -> None:
    w = world_with(no_node(), no_node())
    w.run(200)
    (config,) = w.home.of_kind("ConfigMap").values()
    west = json.loads(config["data"]["job.json"])["spec"]["regions"][1]["pools"]
    assert west == [
        {"name": "spot", "learners": 2, "minimumLearners": 0},
        {"name": "steady", "learners": 3, "minimumLearners": 3},
    ]
    job, running = job_from(w.job), job_from(json.loads(config["data"]["job.json"]))
    assert set(job.spec.learner_ids) < set(running.spec.learner_ids)
    assert running.spec.learner_ids == with_all_fallbacks(job).spec.learner_ids


@pytest.mark.parametrize("trouble", [crashed(1, "ValueError: x"), unschedulable('persistentvolumeclaim "x" not found')])
def test_what_another_node_would_not_mend_makes_nobody_move(trouble: Object) -> None:
    w = world_with(trouble)
    w.run(300)
    assert pools(w) == {"spot": (2, 1, None), "steady": (1, 1, None)}
    assert said(w) == []


def test_a_pool_that_waits_for_a_fallback_of_its_own_is_served_in_turn() -> None:
    w = world_with(no_node(), no_node())
    west = [*w.job["spec"]["regions"][1]["pools"], {"name": "last", "learners": 1}]
    west[1]["fallbackAfterSeconds"] = 120
    w.change(regions=[w.job["spec"]["regions"][0], {"name": "us-west", "pools": west}])
    w.pods.troubles |= {f"{STEADY}{index}": no_node(180.0) for index in (1, 2)}
    w.run(500)
    assert pools(w) == {"spot": (2, 0, 2), "steady": (3, 1, 2), "last": (3, 3, None)}
    assert w.status["learners"]["summary"] == "5/5"


def test_a_suspended_job_has_none_and_begins_anew() -> None:
    w = world_with(no_node(), no_node())
    w.run(200)
    w.change(suspend=True)
    w.run(120)
    assert w.pods_of("learner") == []
    assert pools(w)["spot"] == (0, 0, None)
    w.change(suspend=False)
    w.run(60)
    assert pools(w)["steady"][0] == 3  # the scheduler's word is as old as before


def test_an_elastic_pool_asks_the_next_one_for_its_minimum_only() -> None:
    w = world_with(no_node(), no_node(), minimumLearners=1)
    w.pods.troubles |= {f"{STEADY}{index}": no_node(180.0) for index in (1, 2)}
    w.run(400)
    assert "of us-west/steady (minimum 2) unschedulable" in degraded(w)[2]
    del w.pods.troubles[f"{STEADY}1"]
    w.run(60)
    assert degraded(w)[0] == "False"


def test_a_learner_that_is_given_up_starts_nowhere_else() -> None:
    w = world_with(no_node(), no_node())
    w.run(200)
    assert pools(w)["spot"] == (2, 0, 2)
    w.syncer.given_up = {"us-west/spot/0"}
    w.run(60)
    assert pools(w) == {"spot": (2, 0, 1), "steady": (2, 2, None)}
    assert degraded(w)[1] == "LearnersGivenUp"
    assert "unschedulable" not in degraded(w)[2]
    assert said(w)[1:] == ["1 learners of us-west/spot run in the next pool (before: 2)"]
    w.syncer.given_up = {"us-west/spot/0", "us-west/spot/1"}
    w.run(60)
    assert pools(w) == {"spot": (2, 0, None), "steady": (1, 1, None)}


def test_what_given_up_learners_leave_to_the_minimum_the_next_pool_needs() -> None:
    w = world_with(learners=4, minimumLearners=2)
    w.run(60)
    w.syncer.given_up = {"us-west/spot/0", "us-west/spot/1"}
    w.pods.troubles |= {
        f"{name}{index}": no_node(60.0) for name, first in ((SPOT, 2), (STEADY, 1)) for index in (first, first + 1)
    }
    w.run(300)
    assert pools(w) == {"spot": (4, 0, 2), "steady": (3, 1, None)}
    assert degraded(w)[1] == "Unschedulable"
    assert "2 of 3 learners of us-west/steady unschedulable" in degraded(w)[2]
    assert "of us-west/spot " not in degraded(w)[2], "they are needed in one pool only"
    del w.pods.troubles[f"{STEADY}1"], w.pods.troubles[f"{STEADY}2"]
    w.run(60)
    assert pools(w) == {"spot": (4, 0, 2), "steady": (3, 3, None)}
    assert degraded(w)[1] == "LearnersGivenUp"


def test_nobody_elsewhere_ends_when_one_that_runs_is_left_out() -> None:
    w = world_with()
    w.pods.troubles[f"{SPOT}1"] = no_node()
    w.run(200)
    assert pools(w) == {"spot": (2, 1, 1), "steady": (2, 2, None)}
    before = w.pods.pods[f"{STEADY}1"]["metadata"]["uid"]
    w.job["spec"]["regions"][1]["pools"][0]["excludedIndices"] = [0]
    w.change()
    w.run(60)
    assert pools(w) == {"spot": (1, 0, 1), "steady": (2, 2, None)}
    assert w.pods.pods[f"{STEADY}1"]["metadata"]["uid"] == before
    assert len(said(w)) == 1


def test_what_ends_by_hand_or_by_mistake_ends_nobody_elsewhere() -> None:
    w = world_with(no_node(), no_node())
    w.run(200)
    del w.home.objects["StatefulSet", SPOT.removesuffix("-")]
    w.run(60)
    assert pools(w) == {"spot": (2, 0, 2), "steady": (3, 3, None)}
    w.change(sync={"quorum": 50})
    w.run(30)
    assert w.condition("Degraded")["reason"] == "InvalidSpec"
    assert pools(w)["spot"][2] == 2
    assert len(said(w)) == 1


def test_a_job_that_no_process_would_read_is_not_made() -> None:
    w = world_with(no_node(), no_node())
    west = [*w.job["spec"]["regions"][1]["pools"]]
    west[1] = {"name": "steady", "learners": 0, "batchSize": 65_536}
    east = w.job["spec"]["regions"][0]
    w.change(regions=[east, {"name": "us-west", "pools": west}], training={"tokens": 65_536})
    w.run(200)
    assert pools(w)["spot"][2] is None


def test_a_job_has_no_more_learners_than_a_job_may_have() -> None:
    everybody = [{"name": "us-east", "pools": [{"name": "new", "learners": MAXIMUM_LEARNERS - 5}]}, regions()[1]]
    job = job_from(job_object(tokens=10**12, regions=everybody))
    more = with_more(job, PoolKey("us-west", "spot"), 2)
    assert len(more.spec.learner_ids) == MAXIMUM_LEARNERS
    assert job_from(json.loads(job_text(more))).spec.learner_ids == more.spec.learner_ids


def test_the_most_learners_are_those_of_pools_without_any_node() -> None:
    west = [*regions()[1]["pools"], {"name": "last", "learners": 1}]
    west[1]["fallbackAfterSeconds"] = 120
    west[0] |= {"learners": 3, "excludedIndices": [0]}
    job = job_from(job_object(tokens=10**8, regions=[regions()[0], {"name": "us-west", "pools": west}]))
    most = with_all_fallbacks(job).spec.learner_ids
    assert set(job.spec.learner_ids) < set(most)
    # Two of spot may start in steady, and these and its own one in last.
    assert set(most) - set(job.spec.learner_ids) == {
        *(f"us-west/steady/{index}" for index in (1, 2)),
        *(f"us-west/last/{index}" for index in (1, 2, 3)),
    }
    alone = job_from(job_object(tokens=10**8, regions=[regions()[0]]))
    assert with_all_fallbacks(alone) == alone
