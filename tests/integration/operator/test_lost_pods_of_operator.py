"""Pods on a node that does not respond, on real API servers: no kubelet here ever ends a pod."""

from typing import Any

import pytest

from diloco_operator import labels
from diloco_operator.api_server.api import Api
from diloco_operator.api_server.cache import Cache
from diloco_operator.api_server.errors import ConflictError, NotFoundError
from diloco_operator.api_server.kinds import CLAIM, DEPLOYMENT, POD, STATEFUL_SET
from diloco_operator.cluster_state import ClusterState
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.plan import Plan, PodDeletion
from diloco_operator.decide.reasons import Reason
from diloco_operator.jobs.child_writes import ChildWrites
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.jobs.observe.memory import Memory
from diloco_operator.jobs.observe.places import Places
from diloco_operator.jobs.observe.pods import look_closer
from testbed.api_server.server import ApiServer
from testbed.kind.waiting import wait_until
from tests.support.hand_clock import HandClock
from tests.support.operator_scene import Cluster, Start, manifest
from tests.support.remote_scene import Far, Scene

UID = "0d1c0c0e-0000-4000-8000-000000000000"
NODE = "a-node-that-is-gone"
VICTIM = "two--us-east-fast-1"
LOST = {"nodeName": NODE, "terminationGracePeriodSeconds": 1}


def lost_pod(server: ApiServer, namespace: str, name: str, labels: dict[str, str], claim: str = "") -> str:
    """Create a pod on a node, and ask it to end; returns its uid."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    spec = {"containers": [{"name": "learner", "image": "i"}], "volumes": volumes, **LOST}
    return ended(server, server.put(POD.path(namespace), {"metadata": {"name": name, "labels": labels}, "spec": spec}))


def lost_learner(cluster: Cluster) -> str:
    """The same of one of a job's learners."""
    name, _, index = VICTIM.rpartition("-")
    return ended(cluster.server, cluster.make_pod(name, int(index), **LOST))


def ended(server: ApiServer, pod: dict[str, Any]) -> str:
    namespace, name, uid = (str(pod["metadata"][key]) for key in ("namespace", "name", "uid"))
    assert server.request("DELETE", POD.path(namespace, name))[0] < 300
    assert uid_of(server, namespace, name) == uid, "it stays: nothing confirms its end"
    return uid


def uid_of(server: ApiServer, namespace: str, name: str) -> str:
    """A pod's uid; empty: there is none."""
    code, found = server.request("GET", POD.path(namespace, name))
    return str(found["metadata"]["uid"]) if code == 200 else ""


def act_as_controllers(cluster: Cluster) -> None:
    """What the cluster's controllers would say of a job's sets: they have seen the latest spec."""
    pods = [one["metadata"]["name"] for one in cluster.get("pods")["items"]]
    for kind in (STATEFUL_SET, DEPLOYMENT):
        for metadata in (item["metadata"] for item in cluster.items(kind)):
            count = sum(pod.rpartition("-")[0] == metadata["name"] for pod in pods)
            seen = metadata["generation"]
            cluster.set_status(kind, metadata["name"], observedGeneration=seen, replicas=count)


def suspend(cluster: Cluster) -> None:
    cluster.kubectl("patch", "dilocojob", "two", "--type=merge", '--patch={"spec": {"suspend": true}}')


def is_suspended(cluster: Cluster) -> bool:
    act_as_controllers(cluster)
    return cluster.condition("two", "Suspended").get("status") == "True"


def reasons(cluster: Cluster) -> set[str]:
    return {event["reason"] for event in cluster.get("events")["items"]}


def test_a_lost_pod_of_a_suspended_job_is_removed(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        cluster.apply(manifest("two", failurePolicy={"lostPods": {"afterSeconds": 10}}))
        cluster.settled("two")
        uid = lost_learner(cluster)
        assert uid_of(cluster.server, cluster.namespace, VICTIM) == uid
        suspend(cluster)
        wait_until(lambda: is_suspended(cluster), "it is suspended")
        wait_until(lambda: not uid_of(cluster.server, cluster.namespace, VICTIM), "its pod is gone")
        wait_until(lambda: "LostPodDeleted" in reasons(cluster), "it is reported")
        assert operator.metric("pods_deleted_total", 'reason="LostPodDeleted"') == 1
        wait_until(lambda: cluster.condition("two", "Degraded")["status"] == "False", "nothing is wrong")
        assert operator.metric("api_requests_total", 'verb="delete"') == 1


def test_without_the_right_the_cause_is_told_until_it_is_granted(cluster: Cluster, start: Start) -> None:
    """As with a chart of another version and an operator of this one."""
    user = f"operator-of-{cluster.namespace}"
    groups = ["apps", "policy", "networking.k8s.io", "diloco.dev", "coordination.k8s.io", "events.k8s.io"]
    others = ["services", "configmaps", "secrets", "persistentvolumeclaims"]
    rules = [
        {"apiGroups": groups, "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": others, "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
    ]
    with start(cluster.grant(user, *rules)) as operator:
        cluster.apply(manifest("two", failurePolicy={"lostPods": {"afterSeconds": 10}}))
        cluster.settled("two")
        uid = lost_learner(cluster)
        suspend(cluster)
        wait_until(lambda: is_suspended(cluster), "it is suspended")
        wait_until(lambda: cluster.condition("two", "Degraded").get("reason") == "LostPodKept", "it is said")
        assert "the operator has no right to delete pods" in cluster.condition("two", "Degraded")["message"]
        assert uid_of(cluster.server, cluster.namespace, VICTIM) == uid
        # Conflicts with this test's own writes are errors too.
        assert operator.metric("reconcile_errors_total", 'reason="Forbidden"') == 0
        granted = {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}
        cluster.grant(user, *rules, granted)
        wait_until(lambda: not uid_of(cluster.server, cluster.namespace, VICTIM), "its pod is gone")


async def test_a_forced_deletion_needs_the_pods_own_uid(api: Api, server: ApiServer, namespace: str) -> None:
    uid = lost_pod(server, namespace, "lost", {})
    with pytest.raises(ConflictError):
        await api.delete(POD, namespace, "lost", {"uid": UID}, grace_seconds=0)
    await api.delete(POD, namespace, "lost", {"uid": uid})
    assert uid_of(server, namespace, "lost") == uid, "without force, it stays"
    await api.delete(POD, namespace, "lost", {"uid": uid}, grace_seconds=0)
    with pytest.raises(NotFoundError):
        await api.delete(POD, namespace, "lost", {"uid": uid}, grace_seconds=0)
    assert not uid_of(server, namespace, "lost")


async def test_another_cluster_may_grant_the_right_later(api: Api, scene: Scene, namespace: str, far: Far) -> None:
    marks = {labels.JOB: "job", labels.JOB_UID: UID}
    uid = lost_pod(far.server, far.namespace, "lost-0", marks, claim="corpus")
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    far.server.put(CLAIM.path(far.namespace), {"metadata": {"name": "corpus"}, "spec": claim})
    places = Places(api, Cache(labels.JOB), (), scene.clusters)
    job, memory = JobKey(namespace, "job"), Memory(UID, HandClock())
    child = ChildKey("Pod", "lost-0", "far")
    one = PodDeletion(child, uid, Reason.LOST_POD_DELETED, "west/fast/0", NODE)

    async def delete() -> tuple[PodDeletion, ...]:
        return await ChildWrites(places, job, memory).delete_pods(Plan(1.0, delete_pods=(one,)))

    await scene.reach(far)
    assert await delete() == ()
    assert set(memory.pods_forbidden) == {"far"}
    await ChildWrites(places, job, memory).retry_deletions()
    assert set(memory.pods_forbidden) == {"far"}
    assert scene.seen().state is ClusterState.READY, "nothing else needs that right"
    assert uid_of(far.server, far.namespace, "lost-0") == uid

    far.allow(lost_pods=True)
    await ChildWrites(places, job, memory).retry_deletions()
    assert not memory.pods_forbidden
    assert uid_of(far.server, far.namespace, "lost-0") == uid, "that was a trial"
    place = places.of(job, UID, "far")
    assert place is not None
    looked = await look_closer(place, job, UID, {})
    assert [seen.pod["metadata"]["uid"] for seen in looked.pods] == [uid]
    assert looked.claims == {ChildKey("PersistentVolumeClaim", "corpus", "far"): ("ReadWriteMany",)}
    assert await delete() == (one,)
    assert await delete() == ()
    assert not memory.pods_forbidden
    assert not uid_of(far.server, far.namespace, "lost-0")
