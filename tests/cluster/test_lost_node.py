"""A node that does not come back: its learner is reported as lost, and does not block the job.

Kubernetes cannot end a pod there, so the pod stays. The node is restored only at the end.
"""

from collections.abc import Iterator

import pytest

from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    WAIT_SECONDS,
    ClusterJob,
    apply,
    condition,
    holds,
    is_degraded,
    lost_node,
    manifest,
    new_namespace,
    pool,
)

# Kubernetes considers the node lost after 50 s; the pod's grace period and the wait beyond it are 180 s.
pytestmark = pytest.mark.timeout(1500)

WITNESS, VICTIM = "east/steady/0", "west/spot/0"
_AT_ONCE = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    for taint in ("unreachable", "not-ready")
]
"""Evicted soon, instead of after the five minutes that Kubernetes gives pods that say nothing."""


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    yield from new_namespace(cluster, "lost-node")


@pytest.fixture
def job(cluster: Cluster, chart: Release, namespace: str) -> ClusterJob:
    """The victim alone on a node; the witness, the syncer and the operator on another one."""
    lost = cluster.workers[0]
    kept = next(node["metadata"]["name"] for node in cluster.get("nodes")["items"] if node["metadata"]["name"] != lost)
    here, there = ({"kubernetes.io/hostname": node} for node in (kept, lost))
    regions = [
        {"name": "east", "pools": [pool("steady", nodeSelector=here)]},
        {"name": "west", "pools": [pool("spot", nodeSelector=there, tolerations=_AT_ONCE)]},
    ]
    body = manifest("lost", *regions, tokens=10**12)
    body["spec"]["syncer"]["podTemplate"] = {"spec": {"nodeSelector": here}}
    cluster.kubectl("cordon", lost)
    try:
        cluster.kubectl("delete", "pods", "--namespace", chart.namespace, f"--field-selector=spec.nodeName={lost}")
        made = apply(cluster, namespace, body)
        # By then an operator works on another node.
        wait_until(lambda: (pod := made.syncer_pod()) and pod.node, "the syncer is scheduled", WAIT_SECONDS)
    finally:
        cluster.kubectl("uncordon", lost)
    made.all_train(WITNESS, VICTIM)
    return made


def test_a_node_that_stays_lost_is_told_and_keeps_no_job_from_stopping(job: ClusterJob, cluster: Cluster) -> None:
    victim = job.pod(VICTIM)
    assert victim is not None
    with lost_node(cluster, victim.node):
        leaving = wait_until(lambda: (pod := job.pod(VICTIM)) and pod.leaving, "its pod is to go", WAIT_SECONDS)
        assert leaving
        told = job.wait_for(lambda status: holds(status, "Degraded", "NodeLost"), "the node is reported as lost")
        assert victim.node in condition(told, "Degraded").message
        assert holds(told, "Ready")
        account = job.account()
        assert account is not None
        job.wait_for_account(lambda now: now.merged_tokens > account.merged_tokens, "the other learner trains on")

        job.patch(suspend=True)
        job.wait_for(lambda status: holds(status, "Suspended"), "it is suspended without the lost pod's end")
        assert job.syncer_pod() is None
        still = job.pod(VICTIM)
        assert still is not None
        assert still.uid == victim.uid
    job.patch(suspend=False)
    job.all_train(WITNESS, VICTIM)
    back = job.pod(VICTIM)
    assert back is not None
    assert back.uid != victim.uid
    job.wait_for(lambda status: not is_degraded(status), "nothing is wrong any more")
