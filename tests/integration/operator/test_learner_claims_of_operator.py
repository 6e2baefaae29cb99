"""Learners with claims of their own, on a real API server: the test acts as the cluster's controllers and scheduler."""

import json
from typing import Any

from diloco_operator.api_server.kinds import CORE_EVENT, POD
from testbed.kind.waiting import wait_until
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
    volume = {"name": template["metadata"]["name"], "persistentVolumeClaim": {"claimName": CLAIM}}
    cluster.make_pod(SET, 0, volumes=[*owner["spec"]["template"]["spec"]["volumes"], volume])
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": NOT_BOUND}
    cluster.set_status(POD, POD_NAME, phase="Pending", conditions=[refused])


def warn(cluster: Cluster) -> None:
    """What the controller of volumes says of the claim."""
    body = {
        "metadata": {"name": f"{CLAIM}.17"},
        "involvedObject": {
            "kind": "PersistentVolumeClaim",
            "name": CLAIM,
            "namespace": cluster.namespace,
            "uid": "its",
        },
        "reason": "ProvisioningFailed",
        "message": WHY,
        "type": "Warning",
        # Later than any pod of this test.
        "lastTimestamp": "2099-01-01T00:00:00Z",
    }
    cluster.server.put(CORE_EVENT.path(cluster.namespace), body)


def message(cluster: Cluster) -> str:
    return str(cluster.condition("two", "Degraded").get("message", ""))


def test_a_claim_that_keeps_a_learner_from_starting_is_named(cluster: Cluster, start: Start) -> None:
    with start():
        cluster.apply(stored())
        cluster.settled("two")
        pending_pod(cluster)
        wait_until(lambda: "waiting for a volume" in message(cluster), "it waits for a volume")
        warn(cluster)
        told = f"claim {CLAIM} is pending: {WHY}"
        wait_until(lambda: told in message(cluster), "its claim is named")
        assert cluster.condition("two", "Degraded")["reason"] == "VolumePending"


def test_another_policy_of_claims_is_applied(cluster: Cluster, start: Start) -> None:
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

        wait_until(lambda: policy() == "Retain", "the set has it")
        after = cluster.get("statefulset", SET)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["spec"]["template"] == before["spec"]["template"]
