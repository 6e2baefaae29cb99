"""Learners that lose their node, or are lost together: a drain, a taint, a preemption, a deletion, all but the syncer.

The tests share one job whose budget no test reaches. There is no intervention after a disruption. One that Kubernetes
announces is no failure: the learner hands in its work and leaves.
"""

from dataclasses import dataclass

import pytest

from diloco.spec.status.syncer import SyncerStatus
from diloco_operator.manifests import common
from testbed.kind.clusters import Cluster
from tests.support.cluster_jobs import ClusterJob, bystanders, identities, of
from tests.support.cluster_nodes import (
    BOTH,
    VICTIM,
    WITNESS,
    Nodes,
    deleted_node,
    on,
    put_victim_on,
    tainted,
    witness_and_victim,
)

pytestmark = pytest.mark.timeout(900)

URGENT = "diloco-test-urgent"
MILLI = 1000


@pytest.fixture(scope="module")
def left(nodes: Nodes) -> str:
    """The node that the victim must leave."""
    return nodes.lost


@pytest.fixture(scope="module")
def shared_job(cluster: Cluster, namespace: str, nodes: Nodes) -> ClusterJob:
    return witness_and_victim(cluster, namespace, nodes, "moved")


@pytest.fixture
def job(shared_job: ClusterJob, left: str) -> ClusterJob:
    """The job, with both of its learners training, and the victim on the node that it must leave."""
    put_victim_on(shared_job, left)
    return shared_job


@dataclass(frozen=True)
class Before:
    """A disruption."""

    account: SyncerStatus
    others: dict[str, tuple[str, int]]
    """The pods of the witness and the syncer."""


@pytest.fixture
def before(job: ClusterJob) -> Before:
    return Before(job.all_train(*BOTH), bystanders(job, WITNESS))


def moves(job: ClusterJob, before: Before, left: str) -> None:
    """Wait until the victim trains on another node; it went on where it was, and that counts as no failure."""
    job.wait_for_pod(VICTIM, lambda pod: pod.node not in ("", left), "is on another node")
    job.rejoins(VICTIM, before.account)
    after = job.merges(VICTIM, since=before.account)
    assert of(after, VICTIM).restarts == of(before.account, VICTIM).restarts
    assert of(after, WITNESS).incarnation == of(before.account, WITNESS).incarnation
    assert bystanders(job, WITNESS) == before.others


def test_a_drain_ends_and_its_learner_moves_without_a_failure(
    job: ClusterJob, cluster: Cluster, left: str, before: Before
) -> None:
    try:
        drain = ("drain", left, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=200s")
        selector = f"--pod-selector=app.kubernetes.io/component=learner,diloco.dev/job={job.name}"
        cluster.kubectl(*drain, selector, timeout_seconds=220)
        moves(job, before, left)
    finally:
        cluster.kubectl("uncordon", left)


def test_a_taint_that_evicts_moves_the_learner_without_a_failure(
    job: ClusterJob, cluster: Cluster, left: str, before: Before
) -> None:
    with tainted(cluster, left):
        moves(job, before, left)


def test_a_preempted_learner_moves_without_a_failure(
    job: ClusterJob, cluster: Cluster, left: str, before: Before
) -> None:
    victim = job.pod(VICTIM)
    (container,) = cluster.get("pods", victim.name, job.namespace)["spec"]["containers"]
    taken = free_millicores(cluster, left, without=victim.name)
    urgent = {
        "name": "urgent",
        "image": container["image"],
        "command": ["sleep", "infinity"],
        "securityContext": common.container_security(),
        "resources": {"requests": {"cpu": f"{taken}m"}},
    }
    spec = {
        **on(left)["podTemplate"]["spec"],
        "priorityClassName": URGENT,
        "terminationGracePeriodSeconds": 0,
        "securityContext": common.pod_security(),
        "containers": [urgent],
    }
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": URGENT}}
    cluster.apply({**priority, "value": 1000})
    try:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "urgent"}, "spec": spec}
        cluster.apply(pod, namespace=job.namespace)
        moves(job, before, left)
        job.kubectl("wait", "pod/urgent", "--for=condition=Ready", "--timeout=100s")
    finally:
        job.kubectl("delete", "pod", "urgent", "--ignore-not-found")
        cluster.kubectl("delete", "priorityclass", URGENT)


def free_millicores(cluster: Cluster, node: str, without: str) -> int:
    """What a node's pods leave of its processors, once this pod is gone."""
    allocatable = cluster.get("nodes", node)["status"]["allocatable"]["cpu"]
    pods = cluster.items("pods", fields=f"spec.nodeName={node}")
    requests = [
        container.get("resources", {}).get("requests", {}).get("cpu", "0")
        for pod in pods
        if pod["metadata"]["name"] != without
        for container in pod["spec"]["containers"]
    ]
    return millicores(allocatable) - sum(millicores(request) for request in requests)


def millicores(quantity: str) -> int:
    return int(quantity.removesuffix("m")) if quantity.endswith("m") else round(float(quantity) * MILLI)


def test_a_deleted_node_costs_its_learner_no_failure(
    job: ClusterJob, cluster: Cluster, left: str, before: Before
) -> None:
    with deleted_node(cluster, left):
        # Kubernetes removes the pods of a node that it does not know, after 40 s.
        moves(job, before, left)


def test_all_learners_are_lost_at_once_and_go_on(job: ClusterJob, before: Before) -> None:
    syncer = job.syncer()
    job.kill_pods(*BOTH)
    for learner in BOTH:
        job.rejoins(learner, before.account)
    assert job.merges(*BOTH, since=before.account).epoch == before.account.epoch
    assert identities([job.syncer()]) == identities([syncer])
    job.recovers()


def test_a_job_is_suspended_and_resumed_as_all_of_its_learners_are_lost(job: ClusterJob, before: Before) -> None:
    job.patch(suspend=True)
    # They have no time to hand in what they have.
    job.kill_pods(*BOTH)
    job.becomes("Suspended")
    assert not job.pods()
    job.patch(suspend=False)
    after = job.all_train(*BOTH)
    assert after.epoch > before.account.epoch
    assert after.merged_tokens >= before.account.merged_tokens
    assert [one.steps >= of(before.account, one.id).steps for one in after.learners] == [True, True]
    job.recovers()
