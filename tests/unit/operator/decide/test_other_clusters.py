"""A job over several clusters: one that is away is left alone, and the rest goes on."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from diloco_operator.clusters.state import ClusterSeen, ClusterState, Credential, Expiring
from diloco_operator.decide.clusters import FINALIZER, Clusters
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.plan import Plan
from testbed.virtual_cluster.clusters_world import FAR, FARTHER, HOME_ID, OPTIONS, ClustersWorld, clusters_job
from testbed.virtual_cluster.operator_world import START, UID
from testbed.virtual_cluster.world_pods import Object

AWAY = [state for state in ClusterState if not state.takes_writes]


def training(**spec: Any) -> ClustersWorld:
    w = ClustersWorld(job=clusters_job(**spec))
    w.run(60)
    assert w.status["learners"]["summary"] == "4/4"
    assert w.condition("Degraded")["status"] == "False"
    return w


def touches(plan: Plan, cluster: str) -> bool:
    return cluster in {
        *(one.cluster for one in plan.apply),
        *(one.child.cluster for one in plan.scale),
        *(key.cluster for key in plan.delete),
    }


def strangers(kind: str, name: str, **own: str) -> Object:
    made: Object = {"kind": kind, "metadata": {"name": name, "labels": {"diloco.dev/job": "demo", **own}}}
    return made | ({"spec": {"replicas": 3, "template": {"metadata": {"labels": {}}}}} if kind == "StatefulSet" else {})


def test_nothing_is_created_elsewhere_before_the_job_has_its_finalizer() -> None:
    w = ClustersWorld()
    plan = w.plan()
    assert plan.add_finalizer
    assert {one.cluster for one in plan.apply} == {""}
    w.job["metadata"]["finalizers"] = [FINALIZER]
    plan = w.plan()
    assert not plan.add_finalizer
    assert {one.cluster for one in plan.apply} == {"", FAR, FARTHER}


def test_a_job_at_home_alone_needs_no_finalizer() -> None:
    job = clusters_job()
    job["spec"]["regions"] = job["spec"]["regions"][:1]
    w = ClustersWorld(job=job)
    assert not w.plan().add_finalizer
    w.run(60)
    assert "finalizers" not in w.job["metadata"]
    assert w.status["learners"]["summary"] == "2/2"
    assert "cluster" not in w.region("near")


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


def test_the_status_is_not_written_again_while_a_cluster_is_away() -> None:
    w = training()
    w.others[FAR].state = ClusterState.UNREACHABLE
    w.syncer.frozen = True
    w.run(30)
    writes = w.status_writes
    w.run(300)
    assert w.status_writes == writes


def test_a_new_operator_shows_what_the_last_one_saw() -> None:
    w = training()
    w.others[FAR].state = ClusterState.UNREACHABLE
    w.run(60)
    region = w.region("far")
    w.new_operator()
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
    del w.children[ChildKey("Service", "demo-learners")]
    w.run(10)
    assert ("Service", "demo-learners") in w.others[FARTHER].objects
    assert ChildKey("Service", "demo-learners") in w.children


def test_a_region_that_never_was_reached_is_created_when_it_is() -> None:
    w = ClustersWorld()
    w.others[FAR].state = ClusterState.UNREACHABLE
    w.run(60)
    assert w.status["learners"]["summary"] == "3/4"
    assert w.others[FAR].objects == {}
    w.others[FAR].state = ClusterState.READY
    w.run(60)
    assert w.status["learners"]["summary"] == "4/4"


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
    w.others[FAR].put(strangers("ConfigMap", "demo-job", **{"diloco.dev/home": "home-2", "diloco.dev/job-uid": UID}))
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
    assert plan.delete == (ChildKey("StatefulSet", "another", FAR),)


def test_an_authority_in_another_cluster_is_not_believed() -> None:
    w = training()
    theirs = ClustersWorld(job=clusters_job())
    theirs.run(30)
    forged = theirs.children[ChildKey("Secret", "demo-ca")]["data"]
    far = w.others[FAR].objects["Secret", "demo--far-new-tls"]
    far["data"] = {**far["data"], "ca.crt": forged["ca.crt"]}
    ours = {**strangers("Secret", "demo-ca", **far["metadata"]["labels"]), "data": forged}
    w.others[FAR].put(ours)
    del w.children[ChildKey("Secret", "demo-ca")]
    w.run(10)
    held = w.children[ChildKey("Secret", "demo-ca")]["data"]
    assert forged["ca.crt"] not in held["ca.crt"]
    assert held["ca.key"] != forged["ca.key"]
    assert ("Secret", "demo-ca") not in w.others[FAR].objects
    syncer = w.children[ChildKey("Secret", "demo-syncer-tls")]["data"]
    assert w.others[FAR].objects["Secret", "demo--far-new-tls"]["data"]["ca.crt"] == syncer["ca.crt"]


def test_certificates_are_not_made_for_a_cluster_that_is_away() -> None:
    w = training()
    w.others[FAR].state = ClusterState.UNREACHABLE
    w.new_operator()
    keys = [one.body["metadata"]["name"] for one in w.plan().apply if one.body["kind"] == "Secret"]
    assert keys == []


def test_a_hostile_api_servers_counts_are_no_counts() -> None:
    w = training()
    far = w.others[FAR].objects["StatefulSet", "demo--far-new"]
    far["status"] = {"replicas": "many", "readyReplicas": None, "observedGeneration": [], "updatedReplicas": {}}
    far["spec"] = {**far["spec"], "replicas": "x"}
    plan = w.plan()
    assert [one.body["kind"] for one in plan.apply] == ["StatefulSet"]


def test_two_secrets_for_one_place_are_refused_for_the_second() -> None:
    w = training()
    w.others[FAR].same_as, w.others[FARTHER].same_as = FARTHER, FAR
    assert not touches(w.plan(), FARTHER)
    w.others[FARTHER].objects = w.others[FAR].objects
    w.run(30)
    told = w.condition("Degraded")
    assert told["reason"] == w.region("farther")["reason"] == "DuplicateCluster"
    assert f"Secrets {FAR} and {FARTHER} lead to the same namespace" in told["message"]
    assert "reason" not in w.region("far")


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
@pytest.mark.parametrize(
    ("what", "reason"),
    [(Credential.TOKEN, "TokenExpiring"), (Credential.CERTIFICATE, "ClientCertificateExpiring")],
)
def test_credentials_not_renewed_are_reported_in_their_last_quarter(
    life: timedelta, left: timedelta, what: Credential, reason: str, *, warned: bool
) -> None:
    w = training()
    expires = w.now + left
    w.others[FAR].expiring = Expiring(what, expires - life, expires)
    w.reconcile()
    told = w.condition("Degraded")
    assert (told["reason"] == reason) == warned
    assert (w.region("far").get("reason") == reason) == warned
    if warned:
        assert f"runs out at {expires:%Y-%m-%dT%H:%M:%SZ}" in told["message"]
        assert "since" not in w.region("far"), "the cluster works"


def test_of_three_secrets_for_one_place_the_first_is_used() -> None:
    names = ("a", "b", "c")
    same = {"a": "b", "b": "a", "c": "a"}
    seen = {name: ClusterSeen(ClusterState.READY, namespace="theirs", same_as=same[name]) for name in names}
    for order in (names, names[::-1], ("b", "c", "a")):
        clusters = Clusters({name: name for name in order}, seen, {}, (), finalized=True, now=START, options=OPTIONS)
        assert [name for name in order if not clusters.is_duplicate(name)] == [order[0]]


def test_a_seen_cluster_shows_no_secret() -> None:
    # Whatever is in a kubeconfig, none of these fields is for it.
    assert set(ClusterSeen.__dataclass_fields__) == {
        *("state", "message", "seen_at", "namespace"),
        *("expiring", "settled", "same_as", "unlisted"),
    }


def test_a_set_at_home_does_not_give_its_name_to_a_region_elsewhere() -> None:
    w = training()
    live = w.set_named("near/new")
    stray = {**live, "metadata": {**live["metadata"], "name": "stray", "uid": "stray"}}
    stray["metadata"]["labels"] = {**live["metadata"]["labels"], "diloco.dev/region": "far"}
    w.children[ChildKey("StatefulSet", "stray")] = stray
    plan = w.plan()
    assert (plan.apply, plan.delete) == ((), (ChildKey("StatefulSet", "stray"),))


def test_without_the_id_of_this_home_nothing_is_written_elsewhere() -> None:
    w = ClustersWorld(options=replace(OPTIONS, home_id=""))
    w.run(60)
    assert [other.writes for other in w.others.values()] == [0, 0]
    assert w.status["learners"]["summary"] == "2/4"
