"""Learners of several processes on a real cluster: two processes in one pod, and two pods that are one learner.

The first tests share one job, and are in the order of its life.
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
    identities,
    is_degraded,
    manifest,
    of,
    pool,
    region,
)
from tests.support.cluster_nodes import ONE_SEAT, seat, seated

pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(900)]

COPIES: dict[str, Any] = {"parallelism": "DDP"}
"""The image's torch has no FSDP2 for CPUs."""
PLAIN = "here/cpu/0"
PAIR, UNIT, SECOND = "here/pair/0", "here/unit/0", "here/unit/1"
FIRST_POD, LAST_POD = "here/unit/0", "here/unit/1"
"""Pods of UNIT, named as ``ClusterJob.pod`` names them: by their place in the pool."""
FURTHER_PODS = "here/unit/2", "here/unit/3"


@pytest.fixture(scope="module")
def job(cluster: Cluster, namespace: str) -> ClusterJob:
    """Two learners, of two processes each."""
    both = pool("pair", processesPerNode=2, **COPIES), pool("unit", nodesPerLearner=2, **COPIES)
    return apply(cluster, namespace, manifest("units", region("here", *both)))


def test_pods_of_one_learner_train_as_one(job: ClusterJob) -> None:
    account = job.merges(PAIR, UNIT, since=job.all_train(PAIR, UNIT))
    assert {one.id for one in account.learners} == {PAIR, UNIT}
    ready = job.wait_for(lambda now: now.learners.ready == 2 and not is_degraded(now), "both are ready")
    assert ready.learners.summary == "2/2"
    assert job.pod(FIRST_POD).ready
    assert job.pod(LAST_POD).ready


def test_a_lost_pod_of_a_learner_brings_it_back_as_one(job: ClusterJob) -> None:
    before, others, kept = job.all_train(PAIR, UNIT), bystanders(job, PAIR), job.pod(FIRST_POD)
    job.kill_pods(LAST_POD)
    after = job.rejoins(UNIT, before)
    job.merges(PAIR, UNIT, since=after)
    assert bystanders(job, PAIR) == others
    assert of(after, PAIR).incarnation == of(before, PAIR).incarnation
    assert job.pod(FIRST_POD).uid == kept.uid


def test_a_pod_of_a_learner_that_is_asked_to_go_costs_no_failure(job: ClusterJob) -> None:
    before, kept = job.all_train(PAIR, UNIT), job.pod(FIRST_POD)
    job.kubectl("delete", "pod", job.pod_name(LAST_POD))
    after = job.rejoins(UNIT, before)
    assert of(after, UNIT).restarts == of(before, UNIT).restarts
    assert job.pod(FIRST_POD).uid == kept.uid
    assert any("is asked to stop (SIGTERM)" in line for line in job.log(job.pod_name(FIRST_POD), previous=True))


def test_whole_learners_come_and_go_and_a_new_operator_restarts_none(
    job: ClusterJob, cluster: Cluster, chart: Release
) -> None:
    before = job.all_train(PAIR, UNIT)
    kept = bystanders(job, PAIR, FIRST_POD, LAST_POD)
    cluster.kubectl("delete", "pods", "--all", "--namespace", chart.namespace)
    job.set_pool(0, 1, learners=2)
    job.all_train(PAIR, UNIT, SECOND)
    wait_until(lambda: all(job.pod(one).ready for one in FURTHER_PODS), "both pods of the second are ready")
    job.set_pool(0, 1, learners=1)
    wait_until(lambda: not any(map(job.find_pod, FURTHER_PODS)), "both pods of the second go")
    after = job.all_train(PAIR, UNIT)
    assert bystanders(job, PAIR, FIRST_POD, LAST_POD) == kept
    assert of(after, UNIT).incarnation == of(before, UNIT).incarnation


def test_a_job_of_such_learners_completes(job: ClusterJob) -> None:
    job.patch(training={"tokens": round(job.account().merged_tokens) + 1_000})
    job.kubectl_wait("condition=Complete")
    wait_until(lambda: not job.pods(), "its pods go")
    job.delete()


def test_a_learner_that_fits_only_in_part_takes_no_node(cluster: Cluster, namespace: str) -> None:
    worker = cluster.nodes[-1]
    wanted = manifest(
        "partly", region("here", pool("cpu"), pool("unit", nodesPerLearner=2, resources=ONE_SEAT, **COPIES))
    )
    with seated(cluster, **{worker: 1}):
        job = apply(cluster, namespace, wanted)
        job.all_train(PLAIN)
        job.tells("PlacedInPart")
        # A pod that is replaced is not there for a moment.
        wait_until(
            lambda: [pod.node for pod in map(job.find_pod, (FIRST_POD, LAST_POD)) if pod is not None] == ["", ""],
            "neither pod has a node",
        )
        kept = identities([job.pod(PLAIN)])
        seat(cluster, worker, 2)
        job.all_train(PLAIN, UNIT)
        assert identities([job.pod(PLAIN)]) == kept
