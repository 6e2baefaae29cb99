"""Pods that are held back or outdated, on a real API server: these tests do what the StatefulSets' controller does."""

import json
from datetime import UTC, datetime
from typing import Any

from diloco_operator.api_server.api import Api
from diloco_operator.api_server.kinds import JOB, POD, STATEFUL_SET
from diloco_operator.decide.learners.readmission import READMIT
from diloco_operator.jobs.job_writes import JobWrites
from diloco_operator.jobs.jobs import Jobs
from testbed.kind.waiting import wait_until
from tests.support.operator_scene import REVISION, Cluster, Start, manifest, reconciles_again, revision_of

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
    found, there = set_of(cluster), pods_of(cluster)
    for name in {f"{SET}-{index}" for index in range(found["spec"]["replicas"])} - there.keys():
        made = cluster.make_pod(SET, int(name.rpartition("-")[2]))
        if not made["spec"].get("schedulingGates"):
            cluster.set_status(POD, name, conditions=[{"type": "Ready", "status": "True"}])
    ready = sum(not one["spec"].get("schedulingGates") for one in there.values())
    revision = revision_of(found["spec"]["template"])
    updated = sum(one["metadata"]["labels"][REVISION] == revision for one in there.values())
    counts = {"replicas": len(there), "readyReplicas": ready, "updatedReplicas": updated, "updateRevision": revision}
    cluster.set_status(STATEFUL_SET, SET, observedGeneration=found["metadata"]["generation"], **counts)


def leave_out(cluster: Cluster, *indices: int, **fields: Any) -> None:
    pool = {"name": "fast", "learners": 3, "excludedIndices": list(indices), **fields}
    change = manifest("two", pools={})
    change["spec"]["regions"] = [{"name": "us-east", "pools": [pool]}]
    cluster.apply(change)


def has_pods(cluster: Cluster) -> dict[str, str]:
    """The uids of the pods of a set of three learners, once they are there."""
    leave_out(cluster)
    wait_until(lambda: bool(set_of(cluster)), "its set is there")
    for _ in range(2):
        act_as_controller(cluster)
    uids = {name: pod["metadata"]["uid"] for name, pod in pods_of(cluster).items()}
    assert len(uids) == 3
    return uids


def held(cluster: Cluster) -> set[str]:
    return {name for name, pod in pods_of(cluster).items() if GATE in pod["spec"].get("schedulingGates", [])}


def gates(cluster: Cluster) -> list[Any]:
    found: list[Any] = set_of(cluster)["spec"]["template"]["spec"].get("schedulingGates", [])
    return found


def test_a_learner_is_left_out_and_comes_back_while_the_others_stay(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        uids = has_pods(cluster)
        template = set_of(cluster)["spec"]["template"]
        leave_out(cluster, 1)

        def is_held() -> bool:
            act_as_controller(cluster)
            return held(cluster) == {f"{SET}-1"} and not gates(cluster)

        wait_until(is_held, "its pod is held back")
        assert set_of(cluster)["spec"]["template"] == template, "the others need no other template"
        pool = cluster.status("two")["regions"][0]["pools"][0]
        assert (pool["desired"], pool["held"]) == (2, 1)
        assert operator.metric("pods_deleted_total", 'reason="LearnerHeld"') == 1

        leave_out(cluster)

        def is_back() -> bool:
            act_as_controller(cluster)
            return not held(cluster)

        wait_until(is_back, "it is back")
        now = {name: pod["metadata"]["uid"] for name, pod in pods_of(cluster).items()}
        assert {name for name in uids if now.get(name) != uids[name]} == {f"{SET}-1"}
        assert set_of(cluster)["spec"]["template"] == template


def test_changed_resources_replace_one_pod_after_the_other(cluster: Cluster, start: Start) -> None:
    with start():
        uids = has_pods(cluster)
        leave_out(cluster, resources={"limits": {"cpu": "2"}})
        order: list[str] = []

        def are_replaced() -> bool:
            act_as_controller(cluster)
            now = pods_of(cluster)
            new = [name for name in now if now[name]["metadata"]["uid"] != uids[name] and name not in order]
            assert len(new) <= 1
            order.extend(new)
            return len(order) == 3

        wait_until(are_replaced, "each pod is another one")
        assert order == [f"{SET}-{index}" for index in (2, 1, 0)]
        assert {pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] for pod in pods_of(cluster).values()} == {
            "2"
        }


def test_a_set_of_another_strategy_gets_ours_and_keeps_its_pods(cluster: Cluster, start: Start) -> None:
    with start() as operator:
        leave_out(cluster)
        wait_until(lambda: bool(set_of(cluster)), "its set is there")
        uids = has_pods(cluster)
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
        patch = json.dumps({"spec": {"updateStrategy": rolling}})
        cluster.kubectl("patch", "statefulset", SET, "--type=merge", f"--patch={patch}")
        wait_until(lambda: set_of(cluster)["spec"]["updateStrategy"] == {"type": "OnDelete"}, "it has our strategy")
        act_as_controller(cluster)
        reconciles_again(operator)
    assert {name: pod["metadata"]["uid"] for name, pod in pods_of(cluster).items()} == uids


async def test_an_annotation_is_set_and_removed_and_others_stay(api: Api, cluster: Cluster) -> None:
    cluster.apply(manifest("two"))
    cluster.kubectl("annotate", "dilocojob", "two", f"{READMIT}=us-east/fast/0,us-east/fast/1", "team=ours")
    job = await api.get(JOB, cluster.namespace, "two")
    own = JobWrites(api, Jobs(), lambda: datetime.now(UTC), "test", job)
    for value in ("us-east/fast/1", ""):
        await own.annotate(READMIT, value)
        assert own.job["metadata"]["annotations"].get(READMIT, "") == value
    annotations = cluster.get("dilocojob", "two")["metadata"]["annotations"]
    assert READMIT not in annotations
    assert annotations["team"] == "ours"
