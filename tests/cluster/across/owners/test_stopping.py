"""A job is suspended, scaled and finished while its other cluster is away: all of it is done when that is back."""

import pytest

from diloco.spec.status import JobStatus
from testbed.kind.clusters import Cluster
from testbed.kind.cuts import cut_off
from testbed.kind.waiting import wait_until
from tests.support.across import EAST, WEST, Far, api_cut, has_reason, reachable, region, region_of, sync_cut, train_on
from tests.support.cluster_jobs import WAIT_SECONDS, ClusterJob, apply, condition, holds

pytestmark = pytest.mark.timeout(900)

BUDGET = 60_000
SECOND = "west/cpu/1"


def has_no_pods(there: ClusterJob) -> None:
    wait_until(lambda: not there.pods(), f"the pods of {there.name} go", WAIT_SECONDS)


def is_finished(status: JobStatus) -> bool:
    return holds(status, "Complete")


def test_what_is_asked_while_a_cluster_is_away_is_done_when_it_is_back(
    cluster: Cluster, namespace: str, west: Far
) -> None:
    stopping = apply(cluster, namespace, reachable(cluster, "stopping", region("west", west.name)))
    bounded = reachable(cluster, "finishing", region("east", speed=0.3), region("west", west.name), tokens=BUDGET)
    finishing = apply(cluster, namespace, bounded)
    finishing.all_train(EAST, WEST)
    stopping.all_train(WEST)
    there = [west.job(job.name) for job in (stopping, finishing)]
    with cut_off(west.nodes.addresses, sync_cut(finishing), api_cut(cluster)):
        has_reason(stopping, "west", "ClusterUnreachable")
        stopping.scale(0, 0, 2)
        stopping.wait_for(lambda now: region_of(now, "west").desired == 2, "two are wanted")
        train_on(stopping, WEST)
        stopping.patch(suspend=True)
        told = stopping.wait_for(lambda now: holds(now, "Suspended"), "it does not wait for ever")
        assert "west" in condition(told, "Suspended").message
        done = finishing.wait_for(is_finished, "the other region finishes it")
        assert done.reason == "BudgetReached"
        # Nobody could tell them.
        assert [len(each.pods()) for each in there] == [1, 1]
    for each in there:
        has_no_pods(each)
    assert is_finished(finishing.status())
    stopping.patch(suspend=False)
    stopping.all_train(WEST, SECOND)
