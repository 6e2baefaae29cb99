"""A node that stays away for long: its learner is replaced elsewhere, unless the job says otherwise; its syncer is not.

Kubernetes cannot end a pod there. The node is restored only at the end of each test.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    WAIT_SECONDS,
    ClusterJob,
    PodSeen,
    apply,
    bystanders,
    condition,
    cordoned,
    holds,
    identities,
    is_degraded,
    lost_node,
    manifest,
    new_namespace,
    of,
    on,
    pool,
    shorten_grace,
)
from tests.support.cluster_operator import ClusterOperator

# Kubernetes considers the node lost after 20 s; toleration and the wait beyond the grace period are 40 s.
pytestmark = pytest.mark.timeout(1800)

WITNESS, VICTIM = "east/steady/0", "west/spot/0"
SPOT = 1, 0
"""Region and pool of the victim, by position."""
SOON = {"lostPods": {"afterSeconds": 10}, "maxRestartsPerLearner": 0}
"""A lost node is no failure of its learners: none is given up for it."""


@dataclass(frozen=True)
class Nodes:
    """Two nodes of the cluster."""

    kept: str
    """With the operator."""
    lost: str


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    yield from new_namespace(cluster, "lost-node")


@pytest.fixture
def nodes(cluster: Cluster, chart: Release) -> Iterator[Nodes]:
    """The operator is on the node that is kept, and new pods go there, until the node that is lost is uncordoned."""
    lost = cluster.workers[0]
    kept = next(node for node in cluster.nodes if node != lost)
    cluster.kubectl("cordon", lost)
    try:
        cluster.kubectl("delete", "pods", "--namespace", chart.namespace, f"--field-selector=spec.nodeName={lost}")
        yield Nodes(kept, lost)
    finally:
        cluster.kubectl("uncordon", lost)
        cluster.kubectl("uncordon", kept)


def made(cluster: Cluster, namespace: str, name: str, syncer_node: str, *regions: dict[str, Any]) -> ClusterJob:
    """A job that never ends, with its syncer on that node."""
    body = manifest(name, *regions, tokens=10**12, failurePolicy=SOON)
    body["spec"]["syncer"]["podTemplate"] = {"spec": {"nodeSelector": on(syncer_node)}}
    return apply(cluster, namespace, body)


@pytest.fixture
def job(cluster: Cluster, namespace: str, nodes: Nodes) -> Iterator[ClusterJob]:
    """The victim on the node that will be lost, but not bound to it; the witness and the syncer on the other one."""
    regions = [
        {"name": "east", "pools": [pool("steady", nodeSelector=on(nodes.kept))]},
        {"name": "west", "pools": [pool("spot", learners=0)]},
    ]
    name = f"lost-{secrets.token_hex(3)}"
    found = made(cluster, namespace, name, nodes.kept, *regions)
    found.all_train(WITNESS)
    cluster.kubectl("uncordon", nodes.lost)
    cluster.kubectl("cordon", nodes.kept)
    found.scale(*SPOT, learners=1)
    wait_until(lambda: (pod := found.pod(VICTIM)) and pod.node, "the victim is scheduled", WAIT_SECONDS)
    cluster.kubectl("uncordon", nodes.kept)
    found.all_train(WITNESS, VICTIM)
    yield found
    cluster.kubectl("delete", "dilocojob", name, "--namespace", namespace, "--wait=false")


def victim_of(job: ClusterJob, nodes: Nodes) -> PodSeen:
    victim = job.pod(VICTIM)
    assert victim is not None
    assert victim.node == nodes.lost
    return victim


@pytest.mark.core
def test_a_lost_learner_is_replaced_elsewhere_and_its_old_process_fenced(
    job: ClusterJob, nodes: Nodes, cluster: Cluster, chart: Release
) -> None:
    victim, others = victim_of(job, nodes), bystanders(job, WITNESS)
    assert len(others) == 2
    before = job.all_train(WITNESS, VICTIM)
    with lost_node(cluster, nodes.lost):
        # Without a toleration of the operator's it would stay there for five minutes.
        wait_until(lambda: (pod := job.pod(VICTIM)) and pod.leaving, "its pod is to go", WAIT_SECONDS)
        # An operator that starts now, as in an upgrade, decides by what it sees.
        cluster.kubectl("delete", "pods", "--all", "--namespace", chart.namespace, "--wait=false")
        shorten_grace(job, victim.name)
        wait_until(lambda: (pod := job.pod(VICTIM)) and pod.uid != victim.uid, "it is replaced", WAIT_SECONDS)
        during = job.all_train(WITNESS, VICTIM)
        assert "LostPodReplaced" in job.reasons()
        new = job.pod(VICTIM)
        assert new is not None
        assert new.node == nodes.kept
        assert of(during, VICTIM).incarnation > of(before, VICTIM).incarnation
        assert of(during, VICTIM).steps >= of(before, VICTIM).steps
        assert of(during, VICTIM).restarts == of(before, VICTIM).restarts == 0
        assert holds(job.status(), "Ready")
        job.wait_for(lambda status: not is_degraded(status), "nothing is wrong any more")
    # The old process runs on until its kubelet learns that its pod is gone.
    after = job.wait_for_account(
        lambda account: of(account, VICTIM).merged_tokens > of(during, VICTIM).merged_tokens, "its work is merged"
    )
    assert of(after, VICTIM).incarnation == of(during, VICTIM).incarnation
    again = job.pod(VICTIM)
    assert again is not None
    assert identities([again]) == identities([new])
    assert bystanders(job, WITNESS) == others
    assert of(after, WITNESS).restarts == of(before, WITNESS).restarts


def test_a_job_that_waits_keeps_a_lost_pod_and_can_be_stopped(job: ClusterJob, nodes: Nodes, cluster: Cluster) -> None:
    victim, others = victim_of(job, nodes), bystanders(job, WITNESS)
    job.patch(failurePolicy={"lostPods": {"action": "Wait"}})
    with lost_node(cluster, nodes.lost):
        wait_until(lambda: (pod := job.pod(VICTIM)) and pod.leaving, "its pod is to go", WAIT_SECONDS)
        shorten_grace(job, victim.name)
        told = job.wait_for(lambda status: holds(status, "Degraded", "LostPodKept"), "the node is reported as lost")
        assert victim.node in condition(told, "Degraded").message
        assert holds(told, "Ready")
        account = job.account()
        assert account is not None
        job.wait_for_account(lambda now: now.merged_tokens > account.merged_tokens, "the other learner trains on")
        assert bystanders(job, WITNESS) == others

        job.patch(suspend=True)
        job.wait_for(lambda status: holds(status, "Suspended"), "it is suspended without the lost pod's end")
        assert job.syncer_pod() is None
        still = job.pod(VICTIM)
        assert still is not None
        assert still.uid == victim.uid

        # What it says may change at any time, and holds for a suspended job too.
        job.patch(failurePolicy={"lostPods": {"action": "Replace"}})
        wait_until(lambda: not job.pods(), "the lost pod is removed", WAIT_SECONDS)
        wait_until(lambda: "LostPodRemoved" in job.reasons(), "that is reported", WAIT_SECONDS)
    job.patch(suspend=False)
    job.all_train(WITNESS, VICTIM)
    job.wait_for(lambda status: not is_degraded(status), "nothing is wrong any more")


def test_a_lost_syncer_stays_until_a_person_says_that_it_is_off(
    cluster: Cluster, chart: Release, namespace: str, nodes: Nodes
) -> None:
    cluster.kubectl("uncordon", nodes.lost)
    east = {"name": "east", "pools": [pool("steady", nodeSelector=on(nodes.kept))]}
    there = {"name": "east", "pools": [pool("steady", nodeSelector=on(nodes.lost))]}
    job = made(cluster, namespace, "syncer", nodes.lost, east)
    ending, deleted = (made(cluster, namespace, name, nodes.lost, there) for name in ("ending", "deleted"))
    before = job.all_train(WITNESS)
    for other in (ending, deleted):
        other.all_train(WITNESS)
    syncer = job.syncer_pod()
    assert syncer is not None
    assert syncer.node == nodes.lost
    # The operator is lost with it, so that another one decides by what it sees.
    with cordoned(cluster, nodes.kept):
        cluster.kubectl("delete", "pods", "--all", "--namespace", chart.namespace)
        ClusterOperator(cluster, chart).wait_for(lambda pod: pod.node == nodes.lost, "the operator is there too")
    with lost_node(cluster, nodes.lost):
        deleted.kubectl("delete", "dilocojob", deleted.name)
        ending.patch(activeDeadlineSeconds=1)
        ending.wait_for(lambda status: holds(status, "Failed", "DeadlineExceeded"), "its deadline is over")
        job.patch(suspend=True)
        wait_until(lambda: job.syncer_pod() is None, "its pod is to go", WAIT_SECONDS)
        shorten_grace(job, syncer.name)
        told = job.wait_for(lambda status: holds(status, "Degraded", "SyncerNodeLost"), "it is reported as lost")
        message = condition(told, "Degraded").message
        assert f"diloco.dev/syncer-stopped={syncer.uid}" in message
        assert syncer.name in message
        assert not holds(told, "Suspended")
        assert [pod.uid for pod in job.pods()] == [syncer.uid]
        job.kubectl("annotate", "dilocojob", job.name, f"diloco.dev/syncer-stopped={syncer.uid}")
        job.wait_for(lambda status: holds(status, "Suspended"), "it is suspended")
        assert job.pods() == []
        assert "SyncerPodReleased" in job.reasons()
        # Its volume is on that node: the new syncer waits for it.
        job.patch(suspend=False)
        wait_until(lambda: (pod := job.syncer_pod()) and not pod.ready, "there is a new syncer", WAIT_SECONDS)
    after = job.all_train(WITNESS)
    assert after.epoch > before.epoch
    assert of(after, WITNESS).steps > 0
    job.wait_for(lambda status: not is_degraded(status), "nothing is wrong any more")
    wait_until(lambda: not ending.pods() and not deleted.objects(), "what was to go is gone", WAIT_SECONDS)
    assert ending.status().phase == "Failed"
