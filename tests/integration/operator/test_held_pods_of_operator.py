"""A learner that is left out, on a real API server, on which these tests do what the StatefulSets' controller does."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from diloco_operator import labels
from diloco_operator.cluster.api import Api
from diloco_operator.cluster.connection import connect
from diloco_operator.cluster.kinds import JOB, POD
from diloco_operator.decide.readmission import READMIT
from diloco_operator.job_writes import JobWrites
from diloco_operator.observe.jobs import Jobs
from testbed.operator_process import eventually
from tests.support.operator_scene import Cluster, Start, manifest

SET = "two--us-east-fast"
GATE = {"name": "diloco.dev/held"}


def set_of(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("statefulset", SET)
    return found


def pods_of(cluster: Cluster) -> dict[str, dict[str, Any]]:
    items = cluster.get("pods")["items"]
    return {one["metadata"]["name"]: one for one in items if one["metadata"]["name"].startswith(SET)}


def act_as_controller(cluster: Cluster) -> None:
    """Create the pods that are missing, from the template as it is now, and report what is there."""
    found = set_of(cluster)
    template, owner = found["spec"]["template"], found["metadata"]
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": SET, "uid": owner["uid"], "controller": True}
    there = pods_of(cluster)
    for index in range(found["spec"]["replicas"]):
        if f"{SET}-{index}" not in there:
            marks = {"labels": template["metadata"]["labels"], "ownerReferences": [reference]}
            body = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
            body["metadata"] = {"name": f"{SET}-{index}", "namespace": cluster.namespace, **marks}
            code, answer = cluster.server.request("POST", POD.path(cluster.namespace), body)
            assert code < 300, answer
    ready = sum(not one["spec"].get("schedulingGates") for one in there.values())
    status = {"observedGeneration": owner["generation"], "replicas": len(there), "readyReplicas": ready}
    patch = f"--patch={json.dumps({'status': status})}"
    cluster.kubectl("patch", "statefulset", SET, "--subresource=status", "--type=merge", patch)


def leave_out(cluster: Cluster, *indices: int) -> None:
    pool = {"name": "fast", "learners": 3, "excludedIndices": list(indices)}
    change = manifest("two", pools={})
    change["spec"]["regions"] = [{"name": "us-east", "pools": [pool]}]
    cluster.apply(change)


def held(cluster: Cluster) -> set[str]:
    return {name for name, pod in pods_of(cluster).items() if GATE in pod["spec"].get("schedulingGates", [])}


def strategy(cluster: Cluster) -> str:
    return str(set_of(cluster)["spec"]["updateStrategy"]["type"])


def gates(cluster: Cluster) -> list[Any]:
    found: list[Any] = set_of(cluster)["spec"]["template"]["spec"].get("schedulingGates", [])
    return found


def test_a_learner_is_left_out_and_comes_back_while_the_others_stay(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        leave_out(cluster)
        eventually("its set is there", lambda: bool(set_of(cluster)))
        template = set_of(cluster)["spec"]["template"]
        for _ in range(2):
            act_as_controller(cluster)
        uids = {name: pod["metadata"]["uid"] for name, pod in pods_of(cluster).items()}
        assert len(uids) == 3

        leave_out(cluster, 1)

        def is_held() -> bool:
            act_as_controller(cluster)
            return held(cluster) == {f"{SET}-1"} and not gates(cluster)

        eventually("its pod is held back", is_held)
        assert strategy(cluster) == "OnDelete"
        assert set_of(cluster)["spec"]["template"] == template, "the others need no other template"
        pool = cluster.status("two")["regions"][0]["pools"][0]
        assert (pool["desired"], pool["held"]) == (2, 1)
        assert operator.metric("learners_released_total") == 1

        leave_out(cluster)

        def is_back() -> bool:
            act_as_controller(cluster)
            return not held(cluster) and strategy(cluster) == "RollingUpdate"

        eventually("it is back", is_back)
        now = {name: pod["metadata"]["uid"] for name, pod in pods_of(cluster).items()}
        assert {name for name in uids if now.get(name) != uids[name]} == {f"{SET}-1"}
        assert set_of(cluster)["spec"]["template"] == template


def test_a_wrong_index_is_refused_with_the_field(cluster: Cluster) -> None:
    body = manifest("two")
    pool = body["spec"]["regions"][0]["pools"][0]
    pool["excludedIndices"] = [2]
    refused = cluster.server.kubectl(
        f"--namespace={cluster.namespace}", "apply", "--filename=-", text=json.dumps(body), check=False
    )
    assert "spec.regions[0].pools[0].excludedIndices" in refused.stderr
    assert "names an index that is not below learners, 2; use smaller ones" in refused.stderr
    pool["excludedIndices"] = [1, 1]
    refused = cluster.server.kubectl(
        f"--namespace={cluster.namespace}", "apply", "--filename=-", text=json.dumps(body), check=False
    )
    assert "spec.regions[0].pools[0].excludedIndices[1]: Duplicate value" in refused.stderr


def test_an_annotation_is_set_and_removed_and_others_stay(cluster: Cluster) -> None:
    cluster.apply(manifest("two"))
    cluster.kubectl("annotate", "dilocojob", "two", f"{READMIT}=us-east/fast/0,us-east/fast/1", "team=ours")

    async def scenario() -> None:
        connection = await connect(cluster.server.kubeconfig, None)
        async with connection.open() as client:
            api = Api(client, labels.FIELD_MANAGER)
            job = await api.get(JOB, cluster.namespace, "two")
            own = JobWrites(api, Jobs(), lambda: datetime.now(UTC), "test", job)
            for value in ("us-east/fast/1", ""):
                await own.annotate(READMIT, value)
                assert own.job["metadata"]["annotations"].get(READMIT, "") == value

    asyncio.run(scenario())
    annotations = cluster.get("dilocojob", "two")["metadata"]["annotations"]
    assert READMIT not in annotations
    assert annotations["team"] == "ours"
