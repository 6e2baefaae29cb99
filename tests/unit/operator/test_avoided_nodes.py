"""Nodes on which different learners keep crashing, in a virtual cluster: avoided, and no other pod restarts."""

from typing import Any

import pytest

from diloco_operator.cluster.errors import Call, of_status
from diloco_operator.decide.avoided_nodes import AVOIDED_SECONDS
from diloco_operator.manifests import learners
from diloco_operator.manifests.avoidance import avoided_by, base_revision
from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.operator_world import job_object
from testbed.virtual_cluster.world_pods import crashed

OLD = "demo--us-west-old"
BAD = "node-2"
NODES = ("node-1", BAD, "node-3")


def training(nodes: tuple[str, ...] = NODES) -> ClusterWorld:
    """Six learners of one pool on three nodes, one of another pool."""
    w = ClusterWorld(job_names=())
    w.api.pods.nodes = nodes
    job = job_object(tokens=100_000_000)
    job["spec"]["regions"][1]["pools"][0]["learners"] = 6
    w.create(job)
    w.run(60)
    w.run(180, every=30)
    assert w.status()["phase"] == "Training"
    return w


def uids(w: ClusterWorld) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in w.api.pods.pods.items()}


def nodes(w: ClusterWorld) -> dict[str, str]:
    """Of all learners."""
    return {name: w.api.pods.pods[name]["spec"].get("nodeName", "") for name in w.pods_of("learner")}


def on(w: ClusterWorld, node: str) -> set[str]:
    return {name for name, its in nodes(w).items() if its == node}


def old_set(w: ClusterWorld) -> dict[str, Any]:
    found: dict[str, Any] = w.of_kind("StatefulSet")[OLD]["spec"]
    return found


def on_delete(w: ClusterWorld) -> bool:
    return bool(old_set(w).get("updateStrategy", {}).get("type") == "OnDelete")


def reasons(w: ClusterWorld) -> list[str]:
    return [event["reason"] for event in w.api.events]


def changed(w: ClusterWorld, before: dict[str, str]) -> set[str]:
    return {name for name, uid in uids(w).items() if before.get(name) != uid}


def avoiding() -> tuple[ClusterWorld, set[str], dict[str, str]]:
    """A node has broken. Returns also the pods that were on it, and what all pods were."""
    w = training()
    before, victims = uids(w), on(w, BAD)
    assert len(victims) >= 2
    w.api.pods.broken = {BAD}
    w.run(240)
    assert on(w, BAD) == set()
    return w, victims, before


def test_learners_move_from_a_broken_node_and_nobody_else_restarts() -> None:
    w = training()
    before, victims, template = uids(w), on(w, BAD), old_set(w)["template"]
    w.api.pods.broken = {BAD}
    most_away = 0
    for _ in range(120):
        w.run(2, every=2)
        there = {name for name, pod in w.api.pods.pods.items() if "deletionTimestamp" not in pod["metadata"]}
        most_away = max(most_away, sum(name not in there for name in before))
    assert changed(w, before) == victims
    assert most_away <= 2, "one at a time of each pool"
    assert on(w, BAD) == set()
    assert w.condition("Degraded")["status"] == "False"
    assert avoided_by(old_set(w)["template"]) == (BAD,)
    assert on_delete(w)
    assert reasons(w).count("NodeAvoided") == 1
    moved = " ".join(event["note"] for event in w.api.events if event["reason"] == "LearnerMoved")
    assert all(moved.count(f"pod {name} ") == 1 for name in victims)
    (avoided,) = w.status()["avoidedNodes"]
    assert (avoided["node"], len(avoided["learners"])) == (BAD, len(victims))
    assert old_set(w)["template"] != template


def test_once_they_have_moved_nothing_is_written_any_more() -> None:
    w, _, _ = avoiding()
    w.run(30)
    w.api.writes.clear()
    w.run(300)
    assert {kind for _, kind, _ in w.api.writes} <= {"DiLoCoJob"}


def test_it_ends_by_itself_and_restarts_nobody() -> None:
    w = training()
    template = old_set(w)["template"]
    w.api.pods.broken = {BAD}
    w.run(240)
    before, moved = uids(w), changed(w, {})
    w.api.pods.broken = set()
    w.run(AVOIDED_SECONDS, every=60)
    w.run(60)
    assert old_set(w)["template"] == template, "the base again, to the byte"
    assert not changed(w, before)
    assert "avoidedNodes" not in w.status() or w.status()["avoidedNodes"] == []
    assert on_delete(w), "or the controller would replace those that moved"
    marked = {name for name in moved if base_revision(w.api.pods.pods[name])}
    assert marked
    w.api.writes.clear()
    w.run(300)
    assert {kind for _, kind, _ in w.api.writes} <= {"DiLoCoJob"}
    for name in marked:
        w.api.pods.delete(name)
    w.run(120)
    assert not on_delete(w), "no pod is left that was made from the other template"
    assert changed(w, before) == marked


def test_an_operator_without_memory_goes_on_where_the_last_one_was() -> None:
    w = training()
    before, victims = uids(w), on(w, BAD)
    w.api.pods.broken = {BAD}
    for _ in range(60):
        w.new_operator()
        w.reconcile()
        w.tick()
    assert changed(w, before) == victims
    assert reasons(w).count("NodeAvoided") == 1


def test_where_no_other_node_is_free_they_are_moved_once() -> None:
    w = training()
    w.api.pods.broken = {BAD}
    w.api.pods.nodes = (BAD,)
    w.run(240)
    before = uids(w)
    assert on(w, BAD)
    w.run(600)
    assert not changed(w, before)


def test_changed_resources_reach_every_pod_and_it_is_still_avoided() -> None:
    w, _, _ = avoiding()
    before = uids(w)
    first = base_revision(old_set(w)["template"])
    w.change_pool(region=1, resources={"limits": {"cpu": "2"}})
    most_away = 0
    for _ in range(200):
        w.run(2, every=2)
        there = [name for name, pod in w.api.pods.pods.items() if "deletionTimestamp" not in pod["metadata"]]
        most_away = max(most_away, 6 - sum(name.startswith(OLD) for name in there))
    assert most_away == 1
    assert {name for name in changed(w, before) if name.startswith(OLD)} == {f"{OLD}-{index}" for index in range(6)}
    assert on(w, BAD) == set()
    assert base_revision(old_set(w)["template"]) not in ("", first)
    before = uids(w)
    w.run(300)
    assert not changed(w, before)


def test_a_new_version_of_the_operator_restarts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    w, _, _ = avoiding()
    before, template = uids(w), old_set(w)["template"]
    monkeypatch.setattr(learners, "GRACE_SECONDS", learners.GRACE_SECONDS + 1)
    w.new_operator()
    w.run(120)
    assert old_set(w)["template"] == template
    w.api.pods.broken = set()
    w.run(AVOIDED_SECONDS, every=60)
    w.run(60)
    assert not changed(w, before)
    assert not avoided_by(old_set(w)["template"])


def test_a_learner_that_is_given_up_is_held_beside_an_avoided_node() -> None:
    w, _, _ = avoiding()
    before = uids(w)
    held = f"{OLD}-1"
    w.api.pods.troubles[held] = crashed(3, "given up")
    w.syncers["demo"].given_up = {"us-west/old/1"}
    w.run(120)
    assert "schedulingGates" in w.api.pods.pods[held]["spec"]
    assert changed(w, before) == {held}
    assert avoided_by(old_set(w)["template"]) == (BAD,)
    w.api.pods.broken = set()
    w.run(AVOIDED_SECONDS, every=60)
    w.run(60)
    assert changed(w, before) == {held}
    assert not avoided_by(old_set(w)["template"])
    del w.api.pods.troubles[held]
    w.annotate(readmit="us-west/old/1")
    w.run(120)
    assert changed(w, before) == {held}
    assert "schedulingGates" not in w.api.pods.pods[held]["spec"]


def test_a_pool_that_grows_meanwhile_avoids_the_node_too() -> None:
    w, _, _ = avoiding()
    before = uids(w)
    w.change_pool(region=1, learners=9)
    w.run(120)
    assert on(w, BAD) == set()
    assert not changed(w, before) & before.keys()
    w.change_pool(region=1, learners=4)
    w.run(120)
    assert not changed(w, before) & before.keys()


def test_a_suspended_job_avoids_nothing_and_begins_anew() -> None:
    w, _, _ = avoiding()
    w.change(suspend=True)
    w.run(120)
    assert w.condition("Suspended")["status"] == "True"
    assert not w.status().get("avoidedNodes")
    w.api.pods.broken = set()
    w.change(suspend=False)
    w.run(120)
    assert not on_delete(w)
    assert not avoided_by(old_set(w)["template"])
    assert w.condition("Ready")["status"] == "True"


def test_without_the_right_to_delete_pods_it_is_told_and_nothing_changes() -> None:
    w = training()
    before = uids(w)

    def refuse(verb: str, kind: str, name: str, _body: Any) -> Any:
        return of_status(Call(verb, "pods", "team", name), 403, {}) if (verb, kind) == ("delete", "Pod") else None

    w.api.failing = refuse
    w.api.pods.broken = {BAD}
    w.run(300)
    assert not changed(w, before)
    assert not on_delete(w)
    assert not avoided_by(old_set(w)["template"])
    assert "the operator has no right to delete pods in this namespace" in w.condition("Degraded")["message"]
    assert w.status()["avoidedNodes"][0]["message"]
    w.api.writes.clear()
    w.run(300)
    assert {kind for _, kind, _ in w.api.writes} <= {"DiLoCoJob"}, "it does not come and go"


def test_an_entry_that_is_removed_by_hand_ends_it() -> None:
    w, _, _ = avoiding()
    before = uids(w)
    w.api.pods.broken = set()
    w.job()["status"]["avoidedNodes"] = []
    w.run(60)
    assert not avoided_by(old_set(w)["template"])
    assert not changed(w, before)
