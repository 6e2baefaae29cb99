"""Pods on a node that does not respond, on real API servers: no kubelet here ever ends a pod."""

import asyncio
import json
from typing import Any

import pytest

from diloco_operator import labels
from diloco_operator.cluster.api import Api
from diloco_operator.cluster.cache import Cache
from diloco_operator.cluster.connection import connect
from diloco_operator.cluster.errors import ConflictError, NotFoundError
from diloco_operator.cluster.kinds import CLAIM, POD
from diloco_operator.clusters.state import ClusterState
from diloco_operator.decide.observed import ChildKey
from diloco_operator.decide.plan import Plan, PodDeletion
from diloco_operator.decide.reasons import Reason
from diloco_operator.delete_lost_pods import Done, LostPodWrites
from diloco_operator.observe.jobs import JobKey
from diloco_operator.observe.observer import Memory
from diloco_operator.observe.places import Places
from diloco_operator.observe.pods import look_closer
from diloco_operator.repairs import Repairs
from testbed.api_server.server import ApiServer
from testbed.operator_process import eventually
from tests.support.hand_clock import HandClock
from tests.support.operator_scene import Cluster, Start, manifest
from tests.support.remote_scene import Far, scene_at

UID = "0d1c0c0e-0000-4000-8000-000000000000"
NODE = "a-node-that-is-gone"
VICTIM = "two--us-east-fast-1"


def lost_pod(server: ApiServer, namespace: str, name: str, metadata: dict[str, Any], claim: str = "") -> str:
    """Create a pod on a node, and ask it to end; returns its uid."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {
            "nodeName": NODE,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "learner", "image": "i"}],
            "volumes": volumes,
        },
    }
    code, made = server.request("POST", POD.path(namespace), body)
    assert code < 300, made
    assert server.request("DELETE", POD.path(namespace, name))[0] < 300
    assert uid_of(server, namespace, name) == made["metadata"]["uid"], "it stays: nothing confirms its end"
    return str(made["metadata"]["uid"])


def uid_of(server: ApiServer, namespace: str, name: str) -> str:
    """A pod's uid; empty: there is none."""
    code, found = server.request("GET", POD.path(namespace, name))
    return str(found["metadata"]["uid"]) if code == 200 else ""


def lost_learner(cluster: Cluster) -> str:
    """The lost pod of one of a job's learners, as its StatefulSet would have made it."""
    name = VICTIM.rpartition("-")[0]
    owner = cluster.get("statefulset", name)
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": owner["metadata"]["uid"]}
    marks = {"labels": owner["spec"]["template"]["metadata"]["labels"]}
    return lost_pod(
        cluster.server, cluster.namespace, VICTIM, marks | {"ownerReferences": [{**reference, "controller": True}]}
    )


def act_as_controllers(cluster: Cluster) -> None:
    """What the cluster's controllers would say of a job's sets: they have seen the latest spec."""
    pods = [one["metadata"]["name"] for one in cluster.get("pods")["items"]]
    for kind in ("statefulset", "deployment"):
        for item in cluster.get(f"{kind}s")["items"]:
            metadata = item["metadata"]
            count = sum(pod.rpartition("-")[0] == metadata["name"] for pod in pods)
            status = {"observedGeneration": metadata["generation"], "replicas": count}
            patch = f"--patch={json.dumps({'status': status})}"
            cluster.kubectl("patch", kind, metadata["name"], "--subresource=status", "--type=merge", patch)


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
        eventually("it is suspended", lambda: is_suspended(cluster))
        eventually("its pod is gone", lambda: not uid_of(cluster.server, cluster.namespace, VICTIM))
        eventually("it is reported", lambda: "LostPodRemoved" in reasons(cluster))
        assert operator.metric("lost_pods_deleted_total", 'reason="LostPodRemoved"') == 1
        eventually("nothing is wrong", lambda: cluster.condition("two", "Degraded")["status"] == "False")
        assert operator.metric("api_requests_total", 'verb="delete"') == 1


def test_a_running_job_whose_syncer_is_silent_keeps_its_lost_pod(cluster: Cluster, start: Start) -> None:
    with start():
        cluster.apply(manifest("two", failurePolicy={"lostPods": {"afterSeconds": 10}}))
        cluster.settled("two")
        uid = lost_learner(cluster)

        def told() -> bool:
            act_as_controllers(cluster)
            return cluster.condition("two", "Degraded").get("reason") == "LostPodKept"

        eventually("it is said", told)
        assert "the syncer does not answer" in cluster.condition("two", "Degraded")["message"]
        assert uid_of(cluster.server, cluster.namespace, VICTIM) == uid


def test_without_the_right_the_cause_is_told_until_it_is_granted(cluster: Cluster, start: Start) -> None:
    """As with a chart of an earlier version and an operator of this one."""
    name = f"operator-of-{cluster.namespace}"
    role: dict[str, Any] = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}}
    groups = ["apps", "policy", "networking.k8s.io", "diloco.dev", "coordination.k8s.io", "events.k8s.io"]
    others = ["services", "configmaps", "secrets", "persistentvolumeclaims"]
    rules = [
        {"apiGroups": groups, "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": others, "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
    ]
    cluster.apply({**role, "rules": rules})
    cluster.kubectl("create", "rolebinding", name, f"--role={name}", f"--user={name}")
    with start(cluster.server.kubeconfig_for(name)) as operator:
        cluster.apply(manifest("two", failurePolicy={"lostPods": {"afterSeconds": 10}}))
        cluster.settled("two")
        uid = lost_learner(cluster)
        suspend(cluster)
        eventually("it is suspended", lambda: is_suspended(cluster))
        eventually("it is said", lambda: cluster.condition("two", "Degraded").get("reason") == "LostPodKept")
        assert "the operator has no right to delete pods" in cluster.condition("two", "Degraded")["message"]
        assert uid_of(cluster.server, cluster.namespace, VICTIM) == uid
        # Conflicts with this test's own writes are errors too.
        assert operator.metric("reconcile_errors_total", 'reason="Forbidden"') == 0
        granted = {"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}
        cluster.apply({**role, "rules": [*rules, granted]})
        eventually("its pod is gone", lambda: not uid_of(cluster.server, cluster.namespace, VICTIM))


def test_a_forced_deletion_needs_the_pods_own_uid(server: ApiServer, namespace: str) -> None:
    uid = lost_pod(server, namespace, "lost", {})

    async def scenario() -> None:
        connection = await connect(server.kubeconfig, None)
        async with connection.open() as client:
            api = Api(client, labels.FIELD_MANAGER)
            with pytest.raises(ConflictError):
                await api.delete(POD, namespace, "lost", {"uid": UID}, grace_seconds=0)
            await api.delete(POD, namespace, "lost", {"uid": uid})
            assert uid_of(server, namespace, "lost") == uid, "without force, it stays"
            await api.delete(POD, namespace, "lost", {"uid": uid}, grace_seconds=0)
            with pytest.raises(NotFoundError):
                await api.delete(POD, namespace, "lost", {"uid": uid}, grace_seconds=0)

    asyncio.run(scenario())
    assert not uid_of(server, namespace, "lost")


def test_another_cluster_may_grant_the_right_later(server: ApiServer, namespace: str, far: Far) -> None:
    marks = {"labels": {labels.JOB: "job", labels.JOB_UID: UID}}
    uid = lost_pod(far.server, far.namespace, "lost-0", marks, claim="corpus")
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "corpus"}, "spec": claim}
    assert far.server.request("POST", CLAIM.path(far.namespace), body)[0] < 300

    async def scenario() -> None:
        connection = await connect(server.kubeconfig, None)
        async with connection.open() as client, scene_at(server, namespace) as scene:
            places = Places(Api(client, labels.FIELD_MANAGER), Cache(labels.JOB), (), scene.clusters)
            job, memory = JobKey(namespace, "job"), Memory(UID, Repairs(HandClock()))
            child = ChildKey("Pod", "lost-0", "far")
            one = PodDeletion(child, uid, Reason.LOST_POD_REPLACED, "west/fast/0", NODE)

            async def delete() -> Done:
                return await LostPodWrites(places, job, memory).delete(Plan(1.0, delete_pods=(one,)))

            scene.secret("far", far.kubeconfig())
            scene.use("far")
            await scene.becomes(ClusterState.READY)
            assert await delete() == Done((), refused=True)
            assert memory.pods_forbidden == {"far"}
            assert scene.seen().state is ClusterState.READY, "nothing else needs that right"
            assert uid_of(far.server, far.namespace, "lost-0") == uid

            far.allow(lost_pods=True)
            memory.pods_forbidden = frozenset()
            place = places.of(job, UID, "far")
            assert place is not None
            looked = await look_closer(place, job, UID, {})
            assert [seen.pod["metadata"]["uid"] for seen in looked.pods] == [uid]
            assert looked.claims == {ChildKey("PersistentVolumeClaim", "corpus", "far"): ("ReadWriteMany",)}
            assert await delete() == Done((one,), refused=False)
            assert await delete() == Done((), refused=False)
            assert memory.pods_forbidden == frozenset()

    asyncio.run(scenario())
    assert not uid_of(far.server, far.namespace, "lost-0")
