"""Nodes of a real cluster that are lost, deleted or closed to pods, and a job with a learner on such a node."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from testbed.kind.clusters import Cluster
from testbed.kind.commands import run, succeeds
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import ClusterJob, PodSeen, apply, manifest, pool, region
from tests.support.job_manifests import pods

WITNESS, VICTIM = BOTH = "east/steady/0", "west/spot/0"
"""The learners of `witness_and_victim`."""
STEADY, SPOT = (0, 0), (1, 0)
"""Region and pool of each, by position."""
SEATS = "example.com/seats"
"""A resource of the tests' own, which limits how many pods a node takes, whatever else runs there."""
ONE_SEAT = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", SEATS: 1}}


@dataclass(frozen=True)
class Nodes:
    """Two nodes of a cluster."""

    kept: str
    """With the operator."""
    lost: str


def nodes_without_operator(cluster: Cluster, namespace: str) -> Nodes:
    """Move the operator of this namespace off the node that tests lose."""
    lost = cluster.workers[0]
    with cordoned(cluster, lost):
        cluster.kubectl("delete", "pods", "--namespace", namespace, f"--field-selector=spec.nodeName={lost}")
    return Nodes(next(node for node in cluster.nodes if node != lost), lost)


def on(node: str) -> dict[str, Any]:
    """A podTemplate for this node alone."""
    return pods(nodeSelector={"kubernetes.io/hostname": node})


def witness_and_victim(
    cluster: Cluster, namespace: str, nodes: Nodes, name: str, spot: dict[str, Any] | None = None, **spec: Any
) -> ClusterJob:
    """A job that never ends: witness and syncer are on the node that is kept, the victim wherever ``spot`` lets it."""
    regions = region("east", pool("steady", **on(nodes.kept))), region("west", spot or pool("spot"))
    body = manifest(name, *regions, **spec)
    body["spec"]["syncer"] |= on(nodes.kept)
    return apply(cluster, namespace, body)


def put_victim_on(job: ClusterJob, node: str) -> None:
    """Wait until both learners train, the victim on this node."""
    job.all_train(*BOTH)
    if job.pod(VICTIM).node != node:
        with cordoned(job.cluster, *(other for other in job.cluster.nodes if other != node)):
            job.kubectl("delete", "pod", job.pod_name(VICTIM))
            job.wait_for_pod(VICTIM, lambda pod: pod.node == node, f"is on {node}")
        job.all_train(*BOTH)


def seat(cluster: Cluster, node: str, seats: int | None) -> None:
    """Set how many pods with `ONE_SEAT` a node takes; None: forget about it."""
    wanted = {"op": "remove"} if seats is None else {"op": "add", "value": str(seats)}
    paths = (f"/status/{field}/{SEATS.replace('/', '~1')}" for field in ("capacity", "allocatable"))
    patch = json.dumps([{**wanted, "path": path} for path in paths])
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=json", "--patch", patch)


@contextmanager
def seated(cluster: Cluster, **seats: int) -> Iterator[None]:
    """Inside, nodes take so many."""
    try:
        for node, number in seats.items():
            seat(cluster, node, number)
        yield
    finally:
        for node in seats:
            seat(cluster, node, None)


@contextmanager
def cordoned(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """Meanwhile no pod is scheduled to these nodes."""
    cluster.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", *nodes)


@contextmanager
def tainted(cluster: Cluster, node: str) -> Iterator[None]:
    """Meanwhile every pod that does not tolerate it is evicted from this node."""
    taint = "example.com/going=away:NoExecute"
    cluster.kubectl("taint", "node", node, taint)
    try:
        yield
    finally:
        cluster.kubectl("taint", "node", node, f"{taint}-")


@contextmanager
def lost_node(cluster: Cluster, node: str) -> Iterator[None]:
    """Run without a node, which is back and ready afterwards."""
    _pause(node)
    try:
        yield
    finally:
        run("docker", "unpause", node)
        _is_ready(cluster, node)


@contextmanager
def deleted_node(cluster: Cluster, node: str) -> Iterator[None]:
    """A node that is gone: its machine does not answer, and its object is deleted. Afterwards it joins again."""
    labels = cluster.get("nodes", node)["metadata"]["labels"]
    _pause(node)
    try:
        cluster.kubectl("delete", "node", node)
        yield
    finally:
        run("docker", "unpause", node)
        run("docker", "exec", node, "systemctl", "restart", "kubelet")
        wait_until(lambda: node in cluster.workers, f"{node} joins again")
        _is_ready(cluster, node)
        assert cluster.get("nodes", node)["metadata"]["labels"] == labels


def _pause(node: str) -> None:
    # On a busy machine not every process of the node stops within the engine's time limit; it then undoes the pause.
    wait_until(lambda: succeeds("docker", "pause", node), f"{node} is paused")


def _is_ready(cluster: Cluster, node: str) -> None:
    cluster.kubectl("wait", "node", node, "--for=condition=Ready", "--timeout=180s", timeout_seconds=200)


def shorten_grace(job: ClusterJob, pod: str) -> None:
    """Do not wait for the grace period of a pod that is to go already; its node cannot answer anyway."""
    job.kubectl("delete", "pod", pod, "--grace-period=5", "--wait=false")


def kill_container(pod: PodSeen) -> None:
    """SIGKILL from the node, because no process in the container can kill the first process of its namespace."""
    run("docker", "exec", pod.node, "ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", pod.container)
