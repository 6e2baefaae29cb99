from copy import deepcopy

import pytest

from diloco_operator.cluster_state import ClusterState
from diloco_operator.decide.clusters import GIVE_UP_PLACE
from testbed.virtual_cluster.clusters_world import FAR, FARTHER, ClustersWorld
from testbed.virtual_cluster.namespace import Cluster
from testbed.virtual_cluster.operator_world import World
from testbed.virtual_cluster.world_pods import Object
from tests.unit.operator.decide.training_world import training_abroad, training_world

PLACE = f"https://{FAR}.example:6443/theirs"


def sets(cluster: Cluster) -> list[str]:
    return sorted(name for kind, name in cluster.objects if kind == "StatefulSet")


def change_regions(w: World, *regions: Object) -> None:
    w.change(regions=list(regions))


def without(w: ClustersWorld, *names: str) -> list[Object]:
    return [deepcopy(one) for one in w.job["spec"]["regions"] if one["name"] not in names]


def former(w: World) -> list[Object]:
    found: list[Object] = w.status.get("formerClusters", [])
    return found


@pytest.mark.parametrize("suspended", [False, True])
def test_a_pool_and_a_region_are_added_and_others_removed(*, suspended: bool) -> None:
    w = training_world()
    if suspended:
        w.change(suspend=True)
        w.run(120)
    east, west = deepcopy(w.job["spec"]["regions"])
    east["pools"].insert(0, {"name": "newest", "learners": 2})
    change_regions(w, {"name": "eu", "pools": [{"name": "first"}]}, east, west)
    w.run(60)
    assert sets(w.home) == ["demo--eu-first", "demo--us-east-new", "demo--us-east-newest", "demo--us-west-old"]
    del east["pools"][1]
    change_regions(w, east, west)
    w.run(60)
    assert sets(w.home) == ["demo--us-east-newest", "demo--us-west-old"]
    assert ("Secret", "demo--us-east-new-tls") not in w.home.objects
    assert [one["name"] for one in w.status["regions"]] == ["us-east", "us-west"]
    w.change(suspend=False)
    w.run(120)
    assert w.status["learners"]["summary"] == "5/5"
    assert w.condition("Degraded")["status"] == "False"


def test_learners_of_a_removed_pool_leave_before_its_objects_go() -> None:
    w = training_world()
    change_regions(w, deepcopy(w.job["spec"]["regions"][1]))
    plan = w.plan()
    assert [(one.child.name, one.replicas) for one in plan.scale] == [("demo--us-east-new", 0)]
    assert not plan.delete
    live = w.set_named("us-east/new")
    live["spec"]["replicas"], live["metadata"]["generation"] = 0, live["metadata"]["generation"] + 1
    assert not w.plan().delete, "its controller has not told them to end"
    live["status"]["observedGeneration"] = live["metadata"]["generation"]
    assert [(key.kind, key.name) for key in w.plan().delete] == [
        ("Secret", "demo--us-east-new-tls"),
        ("StatefulSet", "demo--us-east-new"),
    ]


def test_a_cluster_that_no_region_names_is_cleared_and_then_forgotten() -> None:
    w = training_abroad()
    assert w.region("far")["place"] == PLACE
    change_regions(w, *without(w, "far"))
    w.reconcile()
    assert former(w) == [{"cluster": FAR, "place": PLACE}]
    w.run(60)
    assert w.others[FAR].objects == {}
    assert former(w) == []
    assert w.status["learners"]["summary"] == "3/3"
    assert w.condition("Degraded")["status"] == "False"


def test_one_that_is_away_is_told_of_and_cleared_when_it_is_back() -> None:
    w = training_abroad()
    w.others[FAR].state = ClusterState.UNREACHABLE
    change_regions(w, *without(w, "far"))
    w.run(60)
    assert former(w)[0]["reason"] == "ClusterUnreachable"
    told = w.condition("Degraded")
    assert (told["status"], told["reason"]) == ("True", "ClusterUnreachable")
    assert told["message"].startswith(f"cluster {FAR} (of removed regions): as the test wants it; last seen ")
    assert told["message"].endswith(
        f"; the job's objects there stay until it answers, or until {GIVE_UP_PLACE}={PLACE}"
    )
    assert w.condition("Ready")["status"] == "True"
    w.new_operator()
    w.run(60)
    assert sets(w.others[FAR]) == ["demo--far-new"], "nobody asked it"
    w.others[FAR].state = ClusterState.READY
    w.run(60)
    assert (w.others[FAR].objects, former(w)) == ({}, [])
    assert w.condition("Degraded")["status"] == "False"


def test_one_that_never_comes_back_is_given_up_by_its_place() -> None:
    w = training_abroad()
    w.others[FAR].state = ClusterState.UNREACHABLE
    change_regions(w, *without(w, "far"))
    w.run(60)
    w.job["metadata"]["annotations"] = {GIVE_UP_PLACE: "https://elsewhere.example:6443/theirs"}
    w.run(60)
    assert former(w)
    w.job["metadata"]["annotations"] = {GIVE_UP_PLACE: PLACE}
    w.run(60)
    assert former(w) == []
    assert w.condition("Degraded")["status"] == "False"
    (left,) = [one for one in w.events if one.reason == "ChildrenLeft"]
    assert f"what the job has in {PLACE} is left there" in left.message


def test_a_deleted_job_takes_what_it_has_in_a_cluster_that_no_region_names() -> None:
    w = training_abroad()
    w.others[FAR].state = ClusterState.UNREACHABLE
    change_regions(w, *without(w, "far"))
    w.run(60)
    w.delete_job()
    w.run(60)
    assert sets(w.others[FAR]) == ["demo--far-new"]
    w.others[FAR].state = ClusterState.READY
    w.run(60)
    assert w.gone
    assert w.others[FAR].objects == {}
    assert w.left_behind == {}


def move(w: ClustersWorld) -> Cluster:
    """FAR's Secret leads to an empty place from now on; returns the earlier one."""
    earlier = w.others[FAR]
    w.others[FAR] = Cluster(FAR, w.now, place="https://another.example:6443/theirs")
    return earlier


def test_a_secret_that_leads_elsewhere_is_told_and_nothing_is_written() -> None:
    w = training_abroad()
    earlier = move(w)
    w.run(60)
    told = w.condition("Degraded")
    assert (told["status"], told["reason"]) == ("True", "ClusterMoved")
    assert f"the job's objects are in {PLACE}: put the earlier kubeconfig back" in told["message"]
    assert w.region("far")["place"] == PLACE
    assert w.others[FAR].objects == {}
    w.others[FAR] = earlier
    w.run(60)
    assert w.condition("Degraded")["status"] == "False"


def test_a_region_goes_on_elsewhere_once_its_earlier_place_is_given_up() -> None:
    w = training_abroad()
    move(w)
    w.job["metadata"]["annotations"] = {GIVE_UP_PLACE: PLACE}
    w.run(120)
    assert w.region("far")["place"] == "https://another.example:6443/theirs"
    assert sets(w.others[FAR]) == ["demo--far-new"]
    assert w.condition("Degraded")["status"] == "False"
    assert [one.reason for one in w.events].count("ChildrenLeft") == 1


def test_the_same_place_by_another_address_goes_on_without_a_word() -> None:
    w = training_abroad()
    w.others[FAR].place = "https://192.0.2.7:6443/theirs"
    w.run(60)
    assert w.region("far")["place"] == "https://192.0.2.7:6443/theirs"
    assert w.condition("Degraded")["status"] == "False"


def test_another_region_may_be_in_the_place_of_a_removed_one() -> None:
    w = training_abroad()
    (farther,) = [one for one in w.job["spec"]["regions"] if one["name"] == "farther"]
    there = w.others[FAR]
    # Another Secret for the same place: what is seen there is the same, by both.
    w.others["second"] = there
    there.same_as = FAR
    moved = {**deepcopy(farther), "name": "again", "cluster": {"kubeconfigSecretRef": {"name": "second"}}}
    change_regions(w, *without(w, "far"), moved)
    w.run(120)
    assert sets(there) == ["demo--again-new"]
    assert former(w) == []
    assert w.status["learners"]["summary"] == "4/4"
    assert FARTHER in w.others
