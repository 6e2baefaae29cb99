"""The node of another cluster is paused, with its API server and its learners: a region is lost as a whole, and back.

The operator is killed meanwhile.
"""

import pytest

from testbed.kind.waiting import wait_until
from tests.support.across import EAST, LEARNERS, NORTH, WEST, World, has_reason, region_of
from tests.support.cluster_jobs import holds, of
from tests.support.cluster_nodes import kill_container, lost_node

pytestmark = pytest.mark.timeout(600)


def test_a_region_that_is_lost_is_told_and_comes_back_without_a_restart(world: World) -> None:
    pods, operator = world.pods(), world.operator.has_taken_over()
    with lost_node(world.north.cluster, world.north.nodes.control_plane):
        missed = world.job.misses(NORTH)
        before = has_reason(world.job, "north", "ClusterUnreachable")
        kill_container(operator)
        wait_until(
            lambda: any(pod.restarts > operator.restarts and pod.ready for pod in world.operator.pods()),
            "the operator is started again",
        )
        world.job.train_on(EAST, WEST)
        status = world.job.wait_for(lambda now: region_of(now, "north").training == 0, "nobody trains there")
        assert holds(status, "Ready")
        assert region_of(status, "north").last_seen_time == before.last_seen_time
    after = world.job.all_train(*LEARNERS)
    assert of(after, NORTH).steps >= of(missed, NORTH).steps
    world.job.train_on(*LEARNERS)
    has_reason(world.job, "north", None)
    assert world.pods() == pods
