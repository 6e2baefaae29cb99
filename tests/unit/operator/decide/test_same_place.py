"""Two Secrets that lead to one place by different addresses: the second region waits, and nobody's pods are ended."""

from diloco_operator.cluster_state import ClusterSeen, ClusterState
from diloco_operator.decide.clusters import with_same_places
from diloco_operator.decide.observed import ChildKey
from testbed.virtual_cluster.clusters_world import FAR, FARTHER, ClustersWorld

SEEN = ClusterSeen(ClusterState.READY, namespace="theirs")


def test_the_first_is_used_and_the_region_of_the_second_waits() -> None:
    w = ClustersWorld()
    w.others[FARTHER].objects = w.others[FAR].objects
    w.run(60)
    assert w.condition("Degraded")["reason"] == "DuplicateCluster"
    assert f"Secrets {FAR} and {FARTHER} lead to the same namespace" in w.condition("Degraded")["message"]
    regions = {region["name"]: region for region in w.status["regions"]}
    assert (regions["far"].get("reason"), regions["farther"]["reason"]) == (None, "DuplicateCluster")
    assert {name for kind, name in w.others[FAR].objects if kind == "StatefulSet"} == {"demo--far-new"}
    writes = [one.writes for one in w.others.values()]
    w.run(60)
    assert [one.writes for one in w.others.values()] == writes


def test_only_clusters_that_show_the_same_object_are_one_place() -> None:
    def item(uid: object) -> dict[str, object]:
        return {"metadata": {"uid": uid}}

    children = {
        ChildKey("ConfigMap", "a", "one"): item("u1"),
        ChildKey("ConfigMap", "a", "two"): item("u1"),
        ChildKey("ConfigMap", "a", "three"): item("u1"),
        ChildKey("ConfigMap", "a", "four"): item("u2"),
        ChildKey("ConfigMap", "a", "five"): item(""),
        ChildKey("ConfigMap", "a", "six"): item(""),
        ChildKey("ConfigMap", "a"): item("u2"),
        ChildKey("ConfigMap", "a", "gone"): item("u2"),
    }
    names = ("one", "two", "three", "four", "five", "six")
    found = with_same_places(dict.fromkeys(names, SEEN), children)
    assert {name: seen.same_as for name, seen in found.items() if seen.same_as} == {
        "one": "three",
        "two": "one",
        "three": "one",
    }
