"""A node that stays away for long: its learner is replaced elsewhere, unless the job says otherwise; its syncer is not.

Kubernetes cannot end a pod there. The node is restored only at the end of each test.
"""

from typing import Any

import pytest

from testbed.kind.chart import Release
from testbed.kind.clusters import Cluster
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    ClusterJob,
    apply,
    bystanders,
    condition,
    holds,
    identities,
    manifest,
    of,
    pool,
    region,
)
from tests.support.cluster_nodes import (
    BOTH,
    VICTIM,
    WITNESS,
    Nodes,
    cordoned,
    lost_node,
    on,
    put_victim_on,
    shorten_grace,
    witness_and_victim,
)
from tests.support.cluster_operator import ClusterOperator

# Kubernetes considers the node lost after 20 s; toleration and the wait beyond the grace period are 40 s.
pytestmark = pytest.mark.timeout(1800)

SOON = {"lostPods": {"afterSeconds": 10}, "maxRestartsPerLearner": 0}
"""A lost node is no failure of its learners: none is given up for it."""


@pytest.fixture(scope="module")
def shared_job(cluster: Cluster, namespace: str, nodes: Nodes) -> ClusterJob:
    return witness_and_victim(cluster, namespace, nodes, "lost", failurePolicy=SOON)


@pytest.fixture
def job(shared_job: ClusterJob, nodes: Nodes) -> ClusterJob:
    """The job, with both of its learners training, and the victim on the node that will be lost."""
    put_victim_on(shared_job, nodes.lost)
    return shared_job


def test_a_lost_learner_is_replaced_elsewhere_and_its_old_process_fenced(
    job: ClusterJob, nodes: Nodes, cluster: Cluster, chart: Release
) -> None:
    before, victim, others = job.all_train(*BOTH), job.pod(VICTIM), bystanders(job, WITNESS)
    with lost_node(cluster, nodes.lost):
        # Without a toleration of the operator's it would stay there for five minutes.
        job.wait_for_pod(VICTIM, lambda pod: pod.leaving, "is to go")
        # An operator that starts now, as in an upgrade, decides by what it sees.
        cluster.kubectl("delete", "pods", "--all", "--namespace", chart.namespace, "--wait=false")
        shorten_grace(job, victim.name)
        job.wait_for_pod(VICTIM, lambda pod: pod.uid != victim.uid, "is replaced")
        during = job.all_train(*BOTH)
        job.tells("LostPodDeleted")
        new = job.pod(VICTIM)
        assert new.node == nodes.kept
        assert of(during, VICTIM).incarnation > of(before, VICTIM).incarnation
        assert of(during, VICTIM).steps >= of(before, VICTIM).steps
        assert of(during, VICTIM).restarts == of(before, VICTIM).restarts == 0
        assert holds(job.status(), "Ready")
        job.recovers()
    # The old process runs on until its kubelet learns that its pod is gone.
    after = job.merges(VICTIM, since=during)
    assert of(after, VICTIM).incarnation == of(during, VICTIM).incarnation
    assert identities([job.pod(VICTIM)]) == identities([new])
    assert bystanders(job, WITNESS) == others
    assert of(after, WITNESS).restarts == of(before, WITNESS).restarts


def test_a_job_that_waits_keeps_a_lost_pod_and_can_be_stopped(job: ClusterJob, nodes: Nodes, cluster: Cluster) -> None:
    victim, others = job.pod(VICTIM), bystanders(job, WITNESS)
    told_before = job.events().get("LostPodDeleted")
    job.patch(failurePolicy={"lostPods": {"action": "Wait"}})
    with lost_node(cluster, nodes.lost):
        job.wait_for_pod(VICTIM, lambda pod: pod.leaving, "is to go")
        shorten_grace(job, victim.name)
        told = job.becomes("Degraded", "LostPodKept")
        assert victim.node in condition(told, "Degraded").message
        assert holds(told, "Ready")
        job.merges(WITNESS)
        assert bystanders(job, WITNESS) == others

        job.patch(suspend=True)
        # Without the lost pod's end.
        job.becomes("Suspended")
        assert job.find_syncer() is None
        assert job.pod(VICTIM).uid == victim.uid

        # What it says may change at any time, and holds for a suspended job too.
        job.patch(failurePolicy={"lostPods": {"action": "Replace"}})
        wait_until(lambda: not job.pods(), "the lost pod is removed")
        wait_until(lambda: job.events().get("LostPodDeleted") != told_before, "that is reported")
    job.patch(suspend=False)
    job.all_train(*BOTH)
    job.recovers()


def test_a_lost_syncer_stays_until_a_person_says_that_it_is_off(
    cluster: Cluster, chart: Release, namespace: str, nodes: Nodes
) -> None:
    def made(name: str, learner_node: str) -> ClusterJob:
        body: dict[str, Any] = manifest(name, region("east", pool("steady", **on(learner_node))), failurePolicy=SOON)
        body["spec"]["syncer"] |= on(nodes.lost)
        return apply(cluster, namespace, body)

    job, ending, deleted = made("syncer", nodes.kept), made("ending", nodes.lost), made("deleted", nodes.lost)
    before = job.all_train(WITNESS)
    for other in (ending, deleted):
        other.all_train(WITNESS)
    syncer = job.syncer()
    assert syncer.node == nodes.lost
    # The operator is lost with it, so that another one decides by what it sees.
    with cordoned(cluster, nodes.kept):
        cluster.kubectl("delete", "pods", "--all", "--namespace", chart.namespace)
        ClusterOperator(cluster, chart).wait_for(lambda pod: pod.node == nodes.lost, "the operator is there too")
    with lost_node(cluster, nodes.lost):
        deleted.kubectl("delete", "dilocojob", deleted.name)
        ending.patch(activeDeadlineSeconds=1)
        ending.becomes("Failed", "DeadlineExceeded")
        job.patch(suspend=True)
        wait_until(lambda: job.find_syncer() is None, "its pod is to go")
        shorten_grace(job, syncer.name)
        told = job.becomes("Degraded", "SyncerNodeLost")
        message = condition(told, "Degraded").message
        assert f"diloco.dev/syncer-stopped={syncer.uid}" in message
        assert syncer.name in message
        assert not holds(told, "Suspended")
        assert [pod.uid for pod in job.pods()] == [syncer.uid]
        job.kubectl("annotate", "dilocojob", job.name, f"diloco.dev/syncer-stopped={syncer.uid}")
        job.becomes("Suspended")
        assert job.pods() == []
        job.tells("LostPodDeleted")
        # Its volume is on that node: the new syncer waits for it.
        job.patch(suspend=False)
        wait_until(lambda: (pod := job.find_syncer()) and not pod.ready, "there is a new syncer")
    after = job.all_train(WITNESS)
    assert after.epoch > before.epoch
    assert of(after, WITNESS).steps > 0
    job.recovers()
    wait_until(lambda: not ending.pods() and not deleted.objects(), "what was to go is gone")
    assert ending.status().phase == "Failed"
