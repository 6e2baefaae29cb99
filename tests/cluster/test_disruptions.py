"""Learners that lose their node, or are lost together: a drain, a taint, a preemption, a deletion, all but the syncer.

The tests share one job whose budget no test reaches. There is no intervention after a disruption. One that Kubernetes
announces is no failure: the learner hands in its work and leaves.
"""

from collections.abc import Iterator

import pytest

from diloco.spec.syncer_status import SyncerStatus
from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    WAIT_SECONDS,
    ClusterJob,
    PodSeen,
    apply,
    bystanders,
    cordoned,
    deleted_node,
    holds,
    identities,
    is_degraded,
    manifest,
    new_namespace,
    of,
    on,
    pool,
)

pytestmark = pytest.mark.timeout(900)

WITNESS, VICTIM = "east/steady/0", "west/spot/0"
BOTH = WITNESS, VICTIM
URGENT = "diloco-test-urgent"
MILLI = 1000


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    yield from new_namespace(cluster, "disruptions")


@pytest.fixture(scope="module")
def left(cluster: Cluster) -> str:
    """The node that the victim must leave."""
    return cluster.workers[0]


@pytest.fixture(scope="module")
def shared_job(cluster: Cluster, chart: Release, namespace: str, left: str) -> ClusterJob:
    """The witness, the syncer and the operator are on the other node; the victim may go anywhere."""
    stay = on(next(node for node in cluster.nodes if node != left))
    regions = [
        {"name": "east", "pools": [pool("steady", nodeSelector=stay)]},
        {"name": "west", "pools": [pool("spot")]},
    ]
    body = manifest("moved", *regions, tokens=10**12)
    body["spec"]["syncer"]["podTemplate"] = {"spec": {"nodeSelector": stay}}
    with cordoned(cluster, left):
        cluster.kubectl("delete", "pods", "--namespace", chart.namespace, f"--field-selector=spec.nodeName={left}")
    return apply(cluster, namespace, body)


@pytest.fixture
def job(shared_job: ClusterJob, cluster: Cluster, left: str) -> ClusterJob:
    """The job, with both of its learners training, and the victim on the node that it must leave."""
    shared_job.all_train(*BOTH)
    victim = shared_job.pod(VICTIM)
    if victim is None or victim.node != left:
        with cordoned(cluster, *(node for node in cluster.nodes if node != left)):
            shared_job.kubectl("delete", "pod", shared_job.pod_name(VICTIM))
            wait_until(lambda: (pod := shared_job.pod(VICTIM)) and pod.node == left, "it is there", WAIT_SECONDS)
        shared_job.all_train(*BOTH)
    return shared_job


def victim_of(job: ClusterJob) -> PodSeen:
    victim = job.pod(VICTIM)
    assert victim is not None
    return victim


def moves(job: ClusterJob, before: SyncerStatus, left: str) -> None:
    """Wait until the victim trains on another node; it went on where it was, and that counts as no failure."""
    wait_until(lambda: (pod := job.pod(VICTIM)) and pod.node not in ("", left), "it is on another node", WAIT_SECONDS)
    old = of(before, VICTIM)
    after = job.wait_for_account(
        lambda account: (
            of(account, VICTIM).incarnation > old.incarnation and of(account, VICTIM).merged_tokens > old.merged_tokens
        ),
        "its work is merged again",
    )
    assert of(after, VICTIM).restarts == old.restarts
    assert of(after, VICTIM).steps >= old.steps
    assert of(after, WITNESS).incarnation == of(before, WITNESS).incarnation


@pytest.mark.core
def test_a_drain_ends_and_its_learner_moves_without_a_failure(job: ClusterJob, cluster: Cluster, left: str) -> None:
    before, others = job.all_train(*BOTH), bystanders(job, WITNESS)
    try:
        drain = ("drain", left, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=200s")
        selector = f"--pod-selector=app.kubernetes.io/component=learner,diloco.dev/job={job.name}"
        cluster.kubectl(*drain, selector, timeout_seconds=220)
        moves(job, before, left)
    finally:
        cluster.kubectl("uncordon", left)
    assert len(others) == 2
    assert bystanders(job, WITNESS) == others


def test_a_taint_that_evicts_moves_the_learner_without_a_failure(job: ClusterJob, cluster: Cluster, left: str) -> None:
    before, others = job.all_train(*BOTH), bystanders(job, WITNESS)
    cluster.kubectl("taint", "node", left, "example.com/going=away:NoExecute")
    try:
        moves(job, before, left)
    finally:
        cluster.kubectl("taint", "node", left, "example.com/going:NoExecute-")
    assert len(others) == 2
    assert bystanders(job, WITNESS) == others


def test_a_preempted_learner_moves_without_a_failure(job: ClusterJob, cluster: Cluster, left: str) -> None:
    before, others, victim = job.all_train(*BOTH), bystanders(job, WITNESS), victim_of(job)
    image = cluster.get("pods", victim.name, job.namespace)["spec"]["containers"][0]["image"]
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    urgent = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "urgent"},
        "spec": {
            "priorityClassName": URGENT,
            "nodeSelector": on(left),
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "urgent",
                    "image": image,
                    "command": ["sleep", "infinity"],
                    "securityContext": restricted,
                    "resources": {"requests": {"cpu": f"{free_millicores(cluster, left, without=victim.name)}m"}},
                }
            ],
        },
    }
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": URGENT}}
    cluster.apply({**priority, "value": 1000})
    try:
        cluster.apply(urgent, namespace=job.namespace)
        moves(job, before, left)
        job.kubectl("wait", "pod/urgent", "--for=condition=Ready", "--timeout=100s")
    finally:
        job.kubectl("delete", "pod", "urgent", "--ignore-not-found")
        cluster.kubectl("delete", "priorityclass", URGENT)
    assert len(others) == 2
    assert bystanders(job, WITNESS) == others


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


@pytest.mark.core
def test_a_deleted_node_costs_its_learner_no_failure(job: ClusterJob, cluster: Cluster, left: str) -> None:
    before, others = job.all_train(*BOTH), bystanders(job, WITNESS)
    with deleted_node(cluster, left):
        # Kubernetes removes the pods of a node that it does not know, after 40 s.
        moves(job, before, left)
    assert len(others) == 2
    assert bystanders(job, WITNESS) == others


def test_every_learner_is_lost_once_and_merges_go_on(job: ClusterJob) -> None:
    for learner in BOTH:
        before = job.all_train(*BOTH)
        job.kubectl("delete", "pod", job.pod_name(learner), "--grace-period=0", "--force")
        after = job.wait_for_account(
            lambda account, name=learner, old=before: (  # type: ignore[misc]  # it is called before the next one
                of(account, name).incarnation > of(old, name).incarnation
                and of(account, name).merged_tokens > of(old, name).merged_tokens
            ),
            f"the work of {learner} is merged again",
        )
        assert after.syncer_step > before.syncer_step
        assert after.epoch == before.epoch


def test_all_learners_are_lost_at_once_and_go_on(job: ClusterJob) -> None:
    before, syncer = job.all_train(*BOTH), job.syncer_pod()
    assert syncer is not None
    job.kubectl("delete", "pods", *map(job.pod_name, BOTH), "--grace-period=0", "--force")
    after = job.wait_for_account(
        lambda account: all(
            of(account, name).incarnation > of(before, name).incarnation
            and of(account, name).merged_tokens > of(before, name).merged_tokens
            for name in BOTH
        ),
        "the work of both is merged again",
    )
    assert after.epoch == before.epoch
    assert [one.steps >= of(before, one.id).steps for one in after.learners] == [True, True]
    again = job.syncer_pod()
    assert again is not None
    assert identities([again]) == identities([syncer])
    job.wait_for(lambda status: not is_degraded(status), "nothing is wrong any more")


def test_a_job_is_suspended_and_resumed_as_all_of_its_learners_are_lost(job: ClusterJob) -> None:
    before = job.all_train(*BOTH)
    job.patch(suspend=True)
    # They have no time to hand in what they have.
    job.kubectl("delete", "pods", *map(job.pod_name, BOTH), "--grace-period=0", "--force", "--ignore-not-found")
    job.wait_for(lambda status: holds(status, "Suspended"), "it is suspended")
    assert not job.pods()
    job.patch(suspend=False)
    after = job.all_train(*BOTH)
    assert after.epoch > before.epoch
    assert after.merged_tokens >= before.merged_tokens
    assert [one.steps >= of(before, one.id).steps for one in after.learners] == [True, True]
    job.wait_for(lambda status: not is_degraded(status), "nothing is wrong any more")
