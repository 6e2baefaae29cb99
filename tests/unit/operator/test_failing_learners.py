"""Learners whose containers fail before they can join, in a virtual cluster."""

from datetime import timedelta

import pytest

from diloco.spec.learner_orders import FAILED_FILE
from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.operator_world import job_object
from testbed.virtual_cluster.world_pods import crashed, stamp

OLD = "demo--us-west-old"
MIDDLE = f"{OLD}-1"
FAILING = "us-west/old/1"


def world(allowed: int | None, *, restarts: int = 0) -> ClusterWorld:
    """All train but one, whose container has been restarted so often. It has never joined."""
    made = ClusterWorld(job_names=())
    policy = {} if allowed is None else {"maxRestartsPerLearner": allowed}
    made.create(job_object(tokens=10_000_000, failurePolicy=policy))
    made.api.pods.troubles[MIDDLE] = crashed(1, "CUDA error: invalid device ordinal", restarts=restarts)
    made.syncers["demo"].ever = {FAILING}
    made.run(90)
    assert made.status()["phase"] == "Training"
    return made


def gated(world: ClusterWorld) -> set[str]:
    return {name for name, pod in world.api.pods.pods.items() if "schedulingGates" in pod["spec"]}


def orders(world: ClusterWorld) -> str | None:
    told: str | None = world.of_kind("ConfigMap")["demo-job"]["data"].get(FAILED_FILE)
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


def test_a_container_that_runs_may_have_lost_its_link_only() -> None:
    w = world(2, restarts=2)
    w.api.pods.troubles[MIDDLE]["containerStatuses"] = [
        {"name": "learner", "restartCount": 5, "ready": False, "state": {"running": {}}}
    ]
    w.run(60)
    assert (w.syncers["demo"].given_up, orders(w)) == (set(), None)


def test_an_order_stays_while_the_container_is_started_again() -> None:
    w = world(2, restarts=2)
    w.syncers["demo"].reads_orders = False
    w.api.pods.troubles[MIDDLE] = crashed(1, "CUDA error: invalid device ordinal", restarts=3)
    w.run(60)
    told = orders(w)
    w.api.pods.troubles[MIDDLE]["containerStatuses"][0]["state"] = {"running": {}}
    w.new_operator()
    w.run(60)
    assert orders(w) == told == f"{FAILING} 1 0\n"
    w.syncers["demo"].reads_orders = True
    w.run(60)
    assert (w.syncers["demo"].given_up, orders(w)) == ({FAILING}, None)


def test_a_learner_that_has_joined_since_is_not_meant() -> None:
    w = world(2, restarts=2)
    del w.api.pods.troubles[MIDDLE]
    w.run(60)
    assert FAILING in w.syncers["demo"].joined
    w.api.pods.pods[MIDDLE]["status"]["containerStatuses"] = [{"name": "learner", "restartCount": 5, "ready": True}]
    w.run(60)
    assert orders(w) is None


def test_a_learner_that_was_ready_in_its_pod_is_counted_by_the_syncer() -> None:
    w = world(2, restarts=2)
    was_ready = {"type": "Ready", "status": "False", "lastTransitionTime": stamp(w.now)}
    w.api.pods.troubles[MIDDLE] = crashed(1, "CUDA error: invalid device ordinal", restarts=9) | {
        "conditions": [was_ready],
        "startTime": stamp(w.now - timedelta(seconds=60)),
    }
    w.run(60)
    assert (w.syncers["demo"].given_up, orders(w)) == (set(), None)
    was_ready["lastTransitionTime"] = stamp(w.now - timedelta(seconds=120))
    w.api.pods.troubles[MIDDLE]["startTime"] = stamp(w.now - timedelta(seconds=121))
    w.run(60)
    assert w.syncers["demo"].given_up == {FAILING}


def test_containers_beside_the_learners_do_not_count() -> None:
    w = world(2, restarts=0)
    beside = {"name": "beside", "restartCount": 50, "state": {"running": {}}}
    w.api.pods.troubles[MIDDLE]["containerStatuses"].append(beside)
    w.run(60)
    assert orders(w) is None
