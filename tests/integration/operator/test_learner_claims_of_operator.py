"""Learners with claims of their own, on a real API server: the test acts as the cluster's controllers and scheduler."""

import json
from typing import Any

from diloco_operator.cluster.kinds import CORE_EVENT, POD
from testbed.operator_process import eventually
from tests.support.operator_scene import Cluster, Start, manifest

SET = "two--us-east-fast"
POD_NAME = f"{SET}-0"
CLAIM = f"state-{POD_NAME}"
NOT_BOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
WHY = 'storageclass.storage.k8s.io "quick" not found'


def stored() -> dict[str, Any]:
    job = manifest("two")
    job["spec"]["regions"][0]["pools"][0]["storage"] = {"size": "1Gi", "className": "quick"}
    return job


def pending_pod(cluster: Cluster) -> None:
    """The pod as the StatefulSet's controller makes it, with its claim, and as the scheduler leaves it."""
    owner = cluster.get("statefulset", SET)
    (template,) = owner["spec"]["volumeClaimTemplates"]
    pod = owner["spec"]["template"]
    volume = {"name": template["metadata"]["name"], "persistentVolumeClaim": {"claimName": CLAIM}}
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": SET, "uid": owner["metadata"]["uid"]}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": POD_NAME,
            "labels": pod["metadata"]["labels"],
            "ownerReferences": [{**reference, "controller": True}],
        },
        "spec": {**pod["spec"], "volumes": [*pod["spec"]["volumes"], volume]},
    }
    code, made = cluster.server.request("POST", POD.path(cluster.namespace), body)
    assert code < 300, made
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NOT_BOUND}
    status = json.dumps({"status": {"phase": "Pending", "conditions": [refused]}})
    cluster.kubectl("patch", "pod", POD_NAME, "--subresource=status", "--type=strategic", f"--patch={status}")


def warn(cluster: Cluster) -> None:
    """What the controller of volumes says of the claim."""
    about = {"kind": "PersistentVolumeClaim", "name": CLAIM, "namespace": cluster.namespace, "uid": "of-the-claim"}
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{CLAIM}.17"},
        "involvedObject": about,
        "reason": "ProvisioningFailed",
        "message": WHY,
        "type": "Warning",
        # Later than any pod of this test.
        "lastTimestamp": "2099-01-01T00:00:00Z",
    }
    code, made = cluster.server.request("POST", CORE_EVENT.path(cluster.namespace), body)
    assert code < 300, made


def message(cluster: Cluster) -> str:
    return str(cluster.condition("two", "Degraded").get("message", ""))


def test_a_claim_that_keeps_a_learner_from_starting_is_named(cluster: Cluster, start: Start) -> None:
    with start():
        cluster.apply(stored())
        cluster.settled("two")
        pending_pod(cluster)
        eventually("it waits for a volume", lambda: "waiting for a volume" in message(cluster))
        warn(cluster)
        told = f"claim {CLAIM} is pending: {WHY}"
        eventually("its claim is named", lambda: told in message(cluster))
        assert cluster.condition("two", "Degraded")["reason"] == "VolumePending"


def test_only_the_policy_of_claims_can_be_changed_and_is_applied(cluster: Cluster, start: Start) -> None:
    with start():
        cluster.apply(stored())
        cluster.settled("two")
        before = cluster.get("statefulset", SET)
        there = "/spec/regions/0/pools/0/storage"
        change = [{"op": "add", "path": f"{there}/whenDeleted", "value": "Retain"}]
        cluster.kubectl("patch", "dilocojob", "two", "--type=json", f"--patch={json.dumps(change)}")

        def policy() -> str:
            found = cluster.get("statefulset", SET)["spec"]["persistentVolumeClaimRetentionPolicy"]
            return str(found["whenDeleted"])

        eventually("the set has it", lambda: policy() == "Retain")
        after = cluster.get("statefulset", SET)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["spec"]["template"] == before["spec"]["template"]
        for field, value in (("/size", "2Gi"), ("", None)):
            other = {"op": "replace" if value else "remove", "path": f"{there}{field}", "value": value}
            patch = ("patch", "dilocojob", "two", "--type=json", f"--patch={json.dumps([other])}")
            refused = cluster.server.kubectl(f"--namespace={cluster.namespace}", *patch, check=False)
            assert f"spec.regions[0].pools[0].storage{field.replace('/', '.')}" in refused.stderr
            assert "cannot be changed once the job exists" in refused.stderr
