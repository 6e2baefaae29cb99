"""Nodes of other clusters on which different learners keep crashing."""

from typing import Any

from diloco_operator.clusters.state import ClusterState
from diloco_operator.manifests.avoidance import avoided_by
from testbed.virtual_cluster.clusters_world import FAR, ClustersWorld
from tests.support.learners_elsewhere import BAD, SET, six_elsewhere


def uids(pods: dict[str, Any]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


def on(w: ClustersWorld, node: str) -> set[str]:
    return {name for name, pod in w.others[FAR].pods.pods.items() if pod["spec"]["nodeName"] == node}


def test_learners_move_within_their_cluster_and_home_avoids_nothing() -> None:
    w = six_elsewhere()
    far, home, victims = uids(w.others[FAR].pods.pods), uids(w.pods.pods), on(w, BAD)
    w.others[FAR].pods.broken = {BAD}
    w.run(200)
    assert on(w, BAD) == set()
    now = uids(w.others[FAR].pods.pods)
    assert {name for name in far if now[name] != far[name]} == victims
    assert [(one["cluster"], one["node"]) for one in w.status["avoidedNodes"]] == [(FAR, BAD)]
    assert avoided_by(w.others[FAR].objects[SET]["spec"]["template"]) == (BAD,)
    assert not avoided_by(w.set_named("near/new")["spec"]["template"])
    assert uids(w.pods.pods) == home


def test_while_the_cluster_does_not_answer_nothing_is_moved_there() -> None:
    w = six_elsewhere()
    before = uids(w.others[FAR].pods.pods)
    w.others[FAR].pods.broken = {BAD}
    w.others[FAR].state = ClusterState.UNREACHABLE
    w.run(200)
    assert uids(w.others[FAR].pods.pods) == before
    assert not w.status.get("avoidedNodes")
    w.others[FAR].state = ClusterState.READY
    w.run(200)
    assert on(w, BAD) == set()


def test_without_the_right_there_the_region_is_left_as_it_is() -> None:
    w = six_elsewhere()
    before = uids(w.others[FAR].pods.pods)
    w.pods_forbidden = frozenset({FAR})
    w.others[FAR].pods.broken = {BAD}
    w.run(200)
    assert uids(w.others[FAR].pods.pods) == before
    assert not avoided_by(w.others[FAR].objects[SET]["spec"]["template"])
    assert f"the operator has no right to delete pods in cluster {FAR}" in w.condition("Degraded")["message"]
    (there,) = [one for one in w.status["conditions"] if one["type"] == "Degraded"]
    assert "different learners keep crashing on node-2" in there["message"]
