"""A job is suspended, scaled and finished while its other cluster is away: all of it is done when that is back."""

import pytest

from testbed.kind.clusters import Cluster
from testbed.kind.cuts import cut_off
from testbed.kind.waiting import wait_until
from tests.support.across import EAST, WEST, Far, Pair, api_cut, has_reason, reachable, region, region_of, sync_cut
from tests.support.cluster_jobs import apply, condition, holds

pytestmark = pytest.mark.timeout(900)

BUDGET = 60_000
SECOND = "west/cpu/1"


def test_what_is_asked_while_a_cluster_is_away_is_done_when_it_is_back(
    cluster: Cluster, namespace: str, west: Far, pair: Pair
) -> None:
    regions = region("east", speed=0.3), region("west", west.name)
    finishing = apply(cluster, namespace, reachable(cluster, "finishing", *regions, tokens=BUDGET))
    finishing.all_train(EAST, WEST)
    stopping = pair.job
    there = [pair.there(pair.west), west.job(finishing.name)]
    with cut_off(west.nodes.addresses, sync_cut(finishing), api_cut(cluster)):
        has_reason(stopping, "west", "ClusterUnreachable")
        stopping.set_pool(1, 0, learners=2)
        stopping.wait_for(lambda now: region_of(now, "west").desired == 2, "two are wanted")
        stopping.train_on(WEST)
        stopping.patch(suspend=True)
        # It does not wait for ever.
        told = stopping.becomes("Suspended")
        assert "west" in condition(told, "Suspended").message
        # The other region finishes it.
        assert finishing.becomes("Complete").reason == "BudgetReached"
        # Nobody could tell them.
        assert [len(each.pods()) for each in there] == [1, 1]
    wait_until(lambda: not any(each.pods() for each in there), "their pods go")
    assert holds(finishing.status(), "Complete")
    stopping.patch(suspend=False)
    stopping.all_train(EAST, WEST, SECOND)
    stopping.set_pool(1, 0, learners=1)
    stopping.all_train(EAST, WEST)
