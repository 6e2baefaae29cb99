"""A job over three clusters trains to its end, and nothing of it is left anywhere after it is deleted."""

import pytest

from testbed.kind.clusters import Cluster
from testbed.kind.waiting import wait_until
from tests.support.across import Far, learner, reachable, region
from tests.support.cluster_jobs import WAIT_SECONDS, ClusterJob, apply
from tests.support.cluster_operator import ClusterOperator

pytestmark = pytest.mark.timeout(600)

BUDGET = 80_000
REGIONS = ("east", "west", "north")


@pytest.fixture(scope="module")
def job(cluster: Cluster, operator: ClusterOperator, namespace: str, west: Far, north: Far) -> ClusterJob:
    """A job with a region in each of three clusters, complete."""
    assert operator.cluster is cluster
    regions = (region("east", speed=0.3), region("west", west.name, speed=0.3), region("north", north.name, speed=0.3))
    wanted = reachable(cluster, "three", *regions, tokens=BUDGET)
    # Merged only if all have contributed.
    wanted["spec"]["sync"]["quorum"] = len(REGIONS)
    return apply(cluster, namespace, wanted)


def test_a_job_over_three_clusters_trains_until_its_budget_is_merged(job: ClusterJob, west: Far, north: Far) -> None:
    job.all_train(*map(learner, REGIONS))
    for far in (west, north):
        there = far.job(job.name).objects()
        assert {one.partition("/")[0].partition(".")[0] for one in there} >= {"statefulset", "pod", "configmap"}
    job.kubectl_wait("condition=Complete")
    status = job.status()
    assert status.reason == "BudgetReached"
    assert status.progress is not None
    assert status.progress.tokens >= BUDGET
    assert [(one.name, one.cluster, one.reason) for one in status.regions] == [
        ("east", None, None),
        ("west", "west", None),
        ("north", "north", None),
    ]


def test_a_complete_job_has_no_pods_left_in_any_cluster(job: ClusterJob, west: Far, north: Far) -> None:
    places = (job, west.job(job.name), north.job(job.name))
    wait_until(lambda: not any(place.pods() for place in places), "its pods go", WAIT_SECONDS)


def test_a_deleted_job_leaves_nothing_in_any_cluster(job: ClusterJob, west: Far, north: Far) -> None:
    job.kubectl("delete", "dilocojob", job.name)
    for where in (west.job(job.name), north.job(job.name)):
        # The job is gone only after what it had elsewhere.
        assert not where.objects()
    wait_until(lambda: not job.objects(), "nothing is left at home", WAIT_SECONDS)
