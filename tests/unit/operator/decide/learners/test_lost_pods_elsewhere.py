from typing import Any

import pytest

from diloco_operator import labels
from diloco_operator.cluster_state import ClusterState
from testbed.virtual_cluster.clusters_world import FAR, ClustersWorld
from tests.unit.operator.decide.training_world import degraded, training_abroad

VICTIM = "demo--far-new-0"
PREFIX = "1 of 1 learners of far/new lost: node-1 does not respond"


def lost(**spec: Any) -> ClustersWorld:
    """A job that trains, and has lost the node of its learner in another cluster."""
    w = training_abroad(**spec)
    pods = w.others[FAR].pods
    pods.stuck.add(VICTIM)
    pods.delete(VICTIM)
    return w


def test_a_pod_in_another_cluster_is_replaced_there() -> None:
    w = lost()
    home = {name: pod["metadata"]["uid"] for name, pod in w.pods.pods.items()}
    w.run(100)
    assert [(one.child.name, one.child.cluster) for one in w.forced] == [(VICTIM, FAR)]
    w.run(30)
    assert w.status["learners"]["summary"] == "4/4"
    assert {name: pod["metadata"]["uid"] for name, pod in w.pods.pods.items()} == home


def test_nothing_is_deleted_in_a_cluster_that_does_not_answer() -> None:
    w = lost()
    w.others[FAR].state = ClusterState.UNREACHABLE
    w.run(200)
    assert not w.forced
    assert "lost" not in degraded(w)[2]
    w.others[FAR].state = ClusterState.READY
    w.run(20)
    assert len(w.forced) == 1


def test_a_cluster_that_has_not_granted_the_right_is_named() -> None:
    w = lost()
    w.pods_forbidden = frozenset({FAR})
    w.run(100)
    assert not w.forced
    expected = f"{PREFIX}, and pod {VICTIM} stays: the operator has no right to delete pods in cluster {FAR}"
    assert degraded(w)[2] == expected
    assert w.region("far").get("reason") is None, "it answers, and everything else is done there"


def test_a_claim_of_that_cluster_is_not_taken_for_one_of_home() -> None:
    w = lost()
    w.others[FAR].pods.pods[VICTIM]["spec"]["volumes"] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}}
    ]
    w.claims["corpus"] = ("ReadWriteMany",)  # at home
    w.run(100)
    assert not w.forced
    assert "mounts claim corpus, whose access modes are not known" in degraded(w)[2]


@pytest.mark.parametrize("name", ["demo-syncer-1", "demo--near-new-0", "demo--far-new-x"])
def test_a_pod_there_cannot_pretend_to_be_one_of_home(name: str) -> None:
    w = lost(failurePolicy={"lostPods": {"action": "Wait"}})
    pods = w.others[FAR].pods
    pod = pods.pods.pop(VICTIM)
    pod["metadata"]["name"] = name
    if "syncer" in name:
        pod["metadata"]["labels"][labels.COMPONENT] = labels.SYNCER
    pods.pods[name] = pod
    pods.stuck.add(name)
    w.job["metadata"]["annotations"] = {"diloco.dev/syncer-stopped": pod["metadata"]["uid"]}
    w.change(failurePolicy={})
    w.run(150)
    assert not w.forced
    assert w.condition("Degraded")["reason"] not in ("SyncerNodeLost", "LostPodKept", "NodeLost")
