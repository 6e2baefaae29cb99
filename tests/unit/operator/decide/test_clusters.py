from dataclasses import replace
from datetime import timedelta

import pytest

from diloco_operator.cluster_state import ClusterSeen, ClusterState, Credential, Expiring
from diloco_operator.decide.clusters import FINALIZER, Clusters
from diloco_operator.decide.observed import ChildKey
from testbed.virtual_cluster.clusters_world import FAR, FARTHER, HOME_ID, OPTIONS, ClustersWorld, clusters_job
from testbed.virtual_cluster.namespace import START
from testbed.virtual_cluster.operator_world import UID
from testbed.virtual_cluster.world_pods import Object
from tests.unit.operator.decide.training_world import training_abroad as training

AWAY = [state for state in ClusterState if not state.takes_writes]


def strangers(kind: str, name: str, **own: str) -> Object:
    made: Object = {"kind": kind, "metadata": {"name": name, "labels": {"diloco.dev/job": "demo", **own}}}
    return made | ({"spec": {"replicas": 3, "template": {"metadata": {"labels": {}}}}} if kind == "StatefulSet" else {})


def test_a_finalizer_removed_by_hand_comes_back_and_nothing_is_deleted() -> None:
    w = training()
    w.job["metadata"]["finalizers"] = []
    plan = w.plan()
    assert plan.add_finalizer
    assert (plan.apply, plan.scale, plan.delete) == ((), (), ())
    w.run(10)
    assert w.job["metadata"]["finalizers"] == [FINALIZER]


@pytest.mark.parametrize("state", AWAY)
def test_a_cluster_that_is_away_is_left_alone_and_its_learners_count(state: ClusterState) -> None:
    w = training()
    far, pods = w.others[FAR], w.running_abroad()
    far.state, writes, away_at = state, far.writes, w.now
    del far.objects["ConfigMap", "demo-job"]
    w.run(120)
    assert (far.writes, w.running_abroad()) == (writes, pods)
    assert w.status["learners"] == {"desired": 4, "ready": 4, "training": 4, "summary": "4/4"}
    assert w.condition("Ready")["status"] == "True"
    told = w.condition("Degraded")
    assert (told["status"], told["reason"]) == ("True", state.value)
    assert told["message"] == (
        f"cluster {FAR} (region far): as the test wants it; last seen {away_at:%Y-%m-%dT%H:%M:%SZ}; "
        "1 of 1 learners there train"
    )
    assert {key: w.region("far")[key] for key in ("reason", "cluster", "lastSeenTime", "since")} == {
        "reason": state.value,
        "cluster": FAR,
        "lastSeenTime": f"{away_at:%Y-%m-%dT%H:%M:%SZ}",
        "since": f"{away_at:%Y-%m-%dT%H:%M:%SZ}",
    }
    assert "reason" not in w.region("farther")
    far.state = ClusterState.READY
    w.run(10)
    assert ("ConfigMap", "demo-job") in far.objects, "what changed meanwhile is repaired"
    assert w.condition("Degraded")["status"] == "False"
    assert not {"reason", "since", "lastSeenTime"} & set(w.region("far"))


@pytest.mark.parametrize("away", [False, True])
def test_learners_that_the_syncer_lost_do_not_train_though_pods_run(*, away: bool) -> None:
    w = training()
    w.others[FAR].cut = True
    if away:
        w.others[FAR].state = ClusterState.UNREACHABLE
    w.run(120)
    assert w.status["learners"]["summary"] == "3/4"
    assert (w.region("far")["training"], w.region("far")["pools"][0]["ready"]) == (0, 1)
    assert w.condition("Ready")["message"] == "3 of 4 learners train"
    assert w.condition("Degraded")["message"].endswith("; 0 of 1 learners there train" if away else "")
    w.others[FAR].cut, w.others[FAR].state = False, ClusterState.READY
    w.run(30)
    assert w.status["learners"]["summary"] == "4/4"


def test_any_operator_shows_what_was_seen_and_writes_nothing_new() -> None:
    w = training()
    w.others[FAR].state = ClusterState.UNREACHABLE
    w.syncer.frozen = True
    w.run(30)
    region, writes = w.region("far"), w.status_writes
    w.run(300, every=20.0)
    assert w.status_writes == writes
    w.new_operator()
    assert [one for one in w.plan().apply if one.body["kind"] == "Secret"] == [], "no certificate is made for it"
    w.run(60)
    assert w.region("far") == region


def test_before_a_cluster_was_contacted_its_region_stays_as_reported() -> None:
    w = training()
    w.others[FAR].state = ClusterState.UNTRUSTED
    w.run(30)
    region, degraded = w.region("far"), w.condition("Degraded")["reason"]
    w.others[FAR].settled = False
    w.run(30)
    for field in ("reason", "message", "since", "lastSeenTime", "cluster"):
        assert w.region("far")[field] == region[field]
    assert w.region("far")["pools"][0]["ready"] == 1
    assert degraded == "ClusterUntrusted"
    w.others[FAR].settled = True
    w.run(30)
    assert w.region("far") == region


def test_work_in_one_cluster_does_not_wait_for_another() -> None:
    w = training()
    w.others[FAR].state = ClusterState.UNREACHABLE
    w.run(10)
    del w.others[FARTHER].objects["Service", "demo-learners"]
    del w.home.objects["Service", "demo-learners"]
    w.run(10)
    assert ("Service", "demo-learners") in w.others[FARTHER].objects
    assert ("Service", "demo-learners") in w.home.objects


def test_a_forbidden_cluster_is_tried_but_not_what_cannot_be_listed() -> None:
    w = training()
    w.others[FAR].state = ClusterState.FORBIDDEN
    for key in (("Service", "demo-learners"), ("NetworkPolicy", "demo-learners")):
        del w.others[FAR].objects[key]
    assert sorted(one.body["kind"] for one in w.plan().apply) == ["NetworkPolicy", "Service"]
    w.others[FAR].unlisted = frozenset({"NetworkPolicy"})
    assert [one.body["kind"] for one in w.plan().apply] == ["Service"]
    w.run(10)
    assert w.condition("Degraded")["reason"] == "ClusterForbidden"


def test_a_name_that_is_anothers_stops_creation_there_alone() -> None:
    w = ClustersWorld()
    w.others[FAR].put(
        strangers("ConfigMap", "demo-job", **{"diloco.dev/home": "home-2", "diloco.dev/job-uid": "another"})
    )
    before = dict(w.others[FAR].objects)
    w.run(60)
    assert w.others[FAR].objects == before
    assert w.status["learners"]["summary"] == "3/4"
    told = w.condition("Degraded")
    assert told["reason"] == "NameTaken"
    assert f"ConfigMap demo-job in cluster {FAR}" in told["message"]


def test_a_set_that_only_looks_like_a_pools_is_not_adopted() -> None:
    w = training()
    own = {"diloco.dev/home": HOME_ID, "diloco.dev/job-uid": UID, "diloco.dev/region": "near", "diloco.dev/pool": "new"}
    w.others[FAR].put(strangers("StatefulSet", "another", **own))
    plan = w.plan()
    assert not plan.apply
    assert [one.child for one in plan.scale] == [ChildKey("StatefulSet", "another", FAR)]


def test_an_authority_in_another_cluster_is_not_believed() -> None:
    w = training()
    theirs = ClustersWorld(job=clusters_job())
    theirs.run(30)
    forged = theirs.home.objects["Secret", "demo-ca"]["data"]
    far = w.others[FAR].objects["Secret", "demo--far-new-tls"]
    far["data"] = {**far["data"], "ca.crt": forged["ca.crt"]}
    ours = {**strangers("Secret", "demo-ca", **far["metadata"]["labels"]), "data": forged}
    w.others[FAR].put(ours)
    del w.home.objects["Secret", "demo-ca"]
    w.run(10)
    held = w.home.objects["Secret", "demo-ca"]["data"]
    assert forged["ca.crt"] not in held["ca.crt"]
    assert held["ca.key"] != forged["ca.key"]
    assert ("Secret", "demo-ca") not in w.others[FAR].objects
    syncer = w.home.objects["Secret", "demo-syncer-tls"]["data"]
    assert w.others[FAR].objects["Secret", "demo--far-new-tls"]["data"]["ca.crt"] == syncer["ca.crt"]


@pytest.mark.parametrize(
    ("life", "left", "warned"),
    [
        (timedelta(days=365), timedelta(days=8), False),
        (timedelta(days=365), timedelta(days=7), True),
        (timedelta(hours=24), timedelta(hours=7), False),
        (timedelta(hours=24), timedelta(hours=6), True),
        (timedelta(hours=1), timedelta(hours=-1), True),
    ],
)
@pytest.mark.parametrize("what", [Credential.TOKEN, Credential.CERTIFICATE])
def test_credentials_not_renewed_are_reported_in_their_last_quarter(
    life: timedelta, left: timedelta, what: Credential, *, warned: bool
) -> None:
    w = training()
    expires = w.now + left
    w.others[FAR].expiring = Expiring(what, expires - life, expires)
    w.reconcile()
    told = w.condition("Degraded")
    assert (told["reason"] == "CredentialsExpiring") == warned
    assert (w.region("far").get("reason") == "CredentialsExpiring") == warned
    if warned:
        assert f"runs out at {expires:%Y-%m-%dT%H:%M:%SZ}" in told["message"]
        assert "since" not in w.region("far"), "the cluster works"


def test_a_kubeconfig_that_is_deleted_and_used_on_is_told() -> None:
    w = training()
    w.others[FAR].deleted = True
    w.run(10)
    told = w.condition("Degraded")
    assert (told["reason"], w.region("far")["reason"]) == ("KubeconfigDeleted", "KubeconfigDeleted")
    assert "is deleted, and kept by its finalizer diloco.dev/in-use and used while a job names it" in told["message"]
    assert w.condition("Ready")["status"] == "True"


def test_of_three_secrets_for_one_place_the_first_is_used() -> None:
    names = ("a", "b", "c")
    same = {"a": "b", "b": "a", "c": "a"}
    seen = {name: ClusterSeen(ClusterState.READY, namespace="theirs", same_as=same[name]) for name in names}
    for order in (names, names[::-1], ("b", "c", "a")):
        clusters = Clusters({name: name for name in order}, seen, {}, (), finalized=True, now=START, options=OPTIONS)
        assert [name for name in order if not clusters.is_duplicate(name)] == [order[0]]


def test_a_set_at_home_does_not_give_its_name_to_a_region_elsewhere() -> None:
    w = training()
    live = w.set_named("near/new")
    stray = {**live, "metadata": {**live["metadata"], "name": "stray", "uid": "stray"}}
    stray["metadata"]["labels"] = {**live["metadata"]["labels"], "diloco.dev/region": "far"}
    w.home.objects["StatefulSet", "stray"] = stray
    plan = w.plan()
    assert not plan.apply
    assert [one.child for one in plan.scale] == [ChildKey("StatefulSet", "stray")]


def test_without_the_id_of_this_home_nothing_is_written_elsewhere() -> None:
    w = ClustersWorld(options=replace(OPTIONS, home_id=""))
    w.run(60)
    assert [other.writes for other in w.others.values()] == [0, 0]
    assert w.status["learners"]["summary"] == "2/4"
