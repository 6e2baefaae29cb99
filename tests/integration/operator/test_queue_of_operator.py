"""Jobs with a queue and Kueue's own controllers, on a real API server: these tests do what sets' controllers do."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from diloco_operator.api_server.kinds import DEPLOYMENT, POD, STATEFUL_SET, WORKLOAD
from testbed.api_server.queues import NODES, TOLERATION, give_quota, kueue
from testbed.api_server.server import ApiServer, job_api_server, why_there_is_none
from testbed.kind.commands import Unavailable
from testbed.kind.waiting import wait_until
from tests.support.operator_scene import REVISION, Cluster, Start, manifest, revision_of

pytestmark = pytest.mark.timeout(2400)  # Kueue is built the first time

POOLS = {"us-east": {"fast": 2}, "eu": {"slow": 2}}
EAST, EU = "low--us-east-fast", "low--eu-slow"
FIRST = f"{EAST}-0"
"""The learner in the Workload with the syncer."""
FURTHER = {f"{EAST}-1", f"{EU}-0", f"{EU}-1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with Kueue."""
    if reason := why_there_is_none():
        pytest.skip(reason)
    try:
        with job_api_server() as made, kueue(made, tmp_path_factory.mktemp("kueue") / "kueue.log"):
            yield made
    except Unavailable as error:
        pytest.skip(f"no Kueue here: {error}")


def queued(name: str, priority: str, cluster: Cluster, pools: dict[str, dict[str, int]], **spec: Any) -> None:
    cluster.apply(manifest(name, pools, queue={"name": cluster.namespace, "priorityClass": priority}, **spec))


def act(cluster: Cluster) -> None:
    """What the controllers do: pods of sets come and go, and those without a gate are ready; the syncer has no pod."""
    for found in cluster.items(DEPLOYMENT):
        generation = found["metadata"]["generation"]
        counts = {"replicas": found["spec"]["replicas"], "observedGeneration": generation}
        cluster.set_status(DEPLOYMENT, found["metadata"]["name"], **counts)
    pods = {one["metadata"]["name"]: one for one in cluster.get("pods")["items"]}
    for found in cluster.items(STATEFUL_SET):
        name, wanted = found["metadata"]["name"], range(found["spec"]["replicas"])
        own = {pod: one for pod, one in pods.items() if pod.rpartition("-")[0] == name}
        for pod in own.keys() - {f"{name}-{index}" for index in wanted}:
            cluster.kubectl("delete", "pod", pod, "--wait=false")
        for index in wanted:
            if f"{name}-{index}" not in own:
                cluster.make_pod(name, index)
        ready = [pod for pod, one in own.items() if not one["spec"].get("schedulingGates")]
        for pod in ready:
            # The operator may have deleted it meanwhile.
            status = {"conditions": [{"type": "Ready", "status": "True"}]}
            cluster.server.request("PATCH", POD.path(cluster.namespace, pod, "status"), {"status": status})
        revision = revision_of(found["spec"]["template"])
        updated = sum(one["metadata"]["labels"][REVISION] == revision for one in own.values())
        counts = {"replicas": len(own), "readyReplicas": len(ready), "updatedReplicas": updated}
        generation = found["metadata"]["generation"]
        cluster.set_status(STATEFUL_SET, name, **counts, updateRevision=revision, observedGeneration=generation)


def running(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """The pods of learners that may have a node."""
    pods = cluster.get("pods")["items"]
    return {one["metadata"]["name"]: one for one in pods if not one["spec"].get("schedulingGates")}


def workloads(cluster: Cluster) -> dict[str, dict[str, Any]]:
    found = cluster.server.request("GET", WORKLOAD.path(cluster.namespace))[1]["items"]
    return {one["metadata"]["name"]: one for one in found}


def conditions(workload: dict[str, Any]) -> dict[str, str]:
    return {one["type"]: one["status"] for one in workload["status"]["conditions"]}


def until(cluster: Cluster, holds: Callable[[], bool], what: str) -> None:
    def acted() -> bool:
        act(cluster)
        return holds()

    wait_until(acted, what)


def test_a_higher_priority_takes_learner_by_learner_and_gives_back(cluster: Cluster, start: Start) -> None:
    give_quota(cluster.server, cluster.namespace, "500m", low=1, high=10)
    with start(None, "--kueue"):
        queued("low", "low", cluster, POOLS)
        until(cluster, lambda: running(cluster).keys() == {FIRST, *FURTHER}, "all learners of the first job run")
        for pod in running(cluster).values():
            assert pod["spec"]["nodeSelector"] == NODES
            assert TOLERATION in pod["spec"]["tolerations"]
        before = {name: pod["metadata"]["uid"] for name, pod in running(cluster).items()}
        template = cluster.get("deployment", "low-syncer")["spec"]["template"]["spec"]
        assert template["nodeSelector"] == NODES
        until(cluster, lambda: conditions(workloads(cluster)[f"{EU}-1"]).get("PodsReady") == "True", "Kueue is told")

        queued("high", "high", cluster, {"us-east": {"fast": 2}})
        wanted = {FIRST, "high--us-east-fast-0", "high--us-east-fast-1"}
        until(cluster, lambda: running(cluster).keys() == wanted, "the second job took three learners")
        assert running(cluster)[FIRST]["metadata"]["uid"] == before[FIRST]
        found = workloads(cluster)
        for name in FURTHER:
            assert conditions(found[name])["QuotaReserved"] == "False"
            assert "admission" not in found[name]["status"]
        pools = [region["pools"][0] for region in cluster.status("low")["regions"]]
        assert [pool.get("queued") for pool in pools] == [1, 2]
        assert "Preempted to accommodate a workload" in pools[1]["message"]

        cluster.kubectl("delete", "dilocojob", "high", "--wait=false")
        # No controller collects garbage here.
        for kind in ("workloads", "statefulsets", "deployments", "pods"):
            cluster.kubectl("delete", kind, "--selector=diloco.dev/job=high", "--wait=false")
        until(cluster, lambda: running(cluster).keys() == {FIRST, *FURTHER}, "they are back")
        assert running(cluster)[FIRST]["metadata"]["uid"] == before[FIRST]

        queued("low", "low", cluster, POOLS, suspend=True)
        until(cluster, lambda: not running(cluster) and not workloads(cluster), "all quota is free")


def test_a_job_without_quota_says_why_and_starts_once_it_is_there(cluster: Cluster, start: Start) -> None:
    give_quota(cluster.server, cluster.namespace, "150m", low=1)
    with start(None, "--kueue") as operator:
        queued("low", "low", cluster, POOLS)
        until(
            cluster,
            lambda: "insufficient quota" in cluster.condition("low", "Ready").get("message", ""),
            "it says that the quota is too small",
        )
        assert cluster.condition("low", "Ready")["reason"] == "Queued"
        assert cluster.status("low")["phase"] == "Pending"
        assert running(cluster) == {}
        give_quota(cluster.server, cluster.namespace, "300m", low=1)
        until(cluster, lambda: len(running(cluster)) == 2, "it has what fits")
        assert workloads(cluster).keys() == {"low-syncer", *FURTHER}
        (cluster_queue,) = {
            one["status"]["admission"]["clusterQueue"]
            for one in workloads(cluster).values()
            if conditions(one).get("Admitted") == "True"
        }
        assert cluster_queue == cluster.namespace
        patch = json.dumps({"spec": {"active": False}})
        cluster.kubectl("patch", "workload", "low-syncer", "--type=merge", f"--patch={patch}")
        until(cluster, lambda: not running(cluster) and workloads(cluster).keys() == {"low-syncer"}, "it has stopped")
        assert "deactivated" in cluster.condition("low", "Ready")["message"]
        assert conditions(workloads(cluster)["low-syncer"])["QuotaReserved"] == "False"
        assert operator.works
