from datetime import timedelta

import pytest

from diloco.spec.names.learner_orders import FAILED_FILE
from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.operator_world import job_object
from testbed.virtual_cluster.world_pods import Object, crashed, stamp
from tests.unit.operator.jobs.training_cluster import GIVEN_UP as FAILING
from tests.unit.operator.jobs.training_cluster import MIDDLE, gated


def world(allowed: int | None, *, restarts: int = 0) -> ClusterWorld:
    """All train but one, whose container has been restarted so often. It has never joined."""
    made = ClusterWorld(job_names=())
    policy = {} if allowed is None else {"maxRestartsPerLearner": allowed}
    made.create(job_object(tokens=10_000_000, failurePolicy=policy))
    made.pods.troubles[MIDDLE] = crashed(1, "CUDA error: invalid device ordinal", restarts=restarts)
    made.syncers["demo"].ever = {FAILING}
    made.run(90)
    assert made.status()["phase"] == "Training"
    return made


def orders(world: ClusterWorld) -> str | None:
    told: str | None = world.home.of_kind("ConfigMap")["demo-job"]["data"].get(FAILED_FILE)
    return told


def test_a_learner_that_never_joins_is_given_up_as_others_are() -> None:
    w = world(2, restarts=3)
    assert w.syncers["demo"].given_up == {FAILING}
    assert gated(w) == {MIDDLE}
    assert w.status()["regions"][1]["pools"][0]["givenUp"] == [1]
    assert w.condition("Degraded")["reason"] == "LearnersGivenUp"
    assert orders(w) is None, "it is told until it is done"


@pytest.mark.parametrize(("allowed", "restarts"), [(None, 1000), (3, 3)])
def test_it_is_not_within_what_the_job_allows(allowed: int | None, restarts: int) -> None:
    w = world(allowed, restarts=restarts)
    assert (w.syncers["demo"].given_up, orders(w)) == (set(), None)
    assert gated(w) == set()


LOST_ITS_LINK = {"name": "learner", "restartCount": 5, "ready": False, "state": {"running": {}}}
BESIDE = {"name": "beside", "restartCount": 50, "state": {"running": {}}}
FEW = crashed(1, "CUDA error: invalid device ordinal", restarts=0)["containerStatuses"]


@pytest.mark.parametrize("containers", [[LOST_ITS_LINK], [*FEW, BESIDE]], ids=["running", "beside the learner's"])
def test_restarts_of_other_containers_do_not_count(containers: list[Object]) -> None:
    w = world(2, restarts=2)
    w.pods.troubles[MIDDLE]["containerStatuses"] = containers
    w.run(60)
    assert (w.syncers["demo"].given_up, orders(w)) == (set(), None)


def test_an_order_stays_while_the_container_is_started_again() -> None:
    w = world(2, restarts=2)
    w.syncers["demo"].reads_orders = False
    w.pods.troubles[MIDDLE] = crashed(1, "CUDA error: invalid device ordinal", restarts=3)
    w.run(60)
    told = orders(w)
    w.pods.troubles[MIDDLE]["containerStatuses"][0]["state"] = {"running": {}}
    w.new_operator()
    w.run(60)
    assert orders(w) == told == f"{FAILING} 1 0\n"
    w.syncers["demo"].reads_orders = True
    w.run(60)
    assert (w.syncers["demo"].given_up, orders(w)) == ({FAILING}, None)


def test_a_learner_that_has_joined_since_is_not_meant() -> None:
    w = world(2, restarts=2)
    del w.pods.troubles[MIDDLE]
    w.run(60)
    assert FAILING in w.syncers["demo"].joined
    w.pods.pods[MIDDLE]["status"]["containerStatuses"] = [{"name": "learner", "restartCount": 5, "ready": True}]
    w.run(60)
    assert orders(w) is None


def test_a_learner_that_was_ready_in_its_pod_is_counted_by_the_syncer() -> None:
    w = world(2, restarts=2)
    was_ready = {"type": "Ready", "status": "False", "lastTransitionTime": stamp(w.now)}
    w.pods.troubles[MIDDLE] = crashed(1, "CUDA error: invalid device ordinal", restarts=9) | {
        "conditions": [was_ready],
        "startTime": stamp(w.now - timedelta(seconds=60)),
    }
    w.run(60)
    assert (w.syncers["demo"].given_up, orders(w)) == (set(), None)
    was_ready["lastTransitionTime"] = stamp(w.now - timedelta(seconds=120))
    w.pods.troubles[MIDDLE]["startTime"] = stamp(w.now - timedelta(seconds=121))
    w.run(60)
    assert w.syncers["demo"].given_up == {FAILING}
