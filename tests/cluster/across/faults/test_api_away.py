"""API servers of other clusters that hang, refuse or are cut off: learners there train on, and home waits for none."""

import time

import pytest

from testbed.kind.cuts import cut_off
from testbed.kind.hangs import hanging_api_server
from testbed.kind.waiting import wait_until
from tests.support.across import LEARNERS, World, api_cut, has_reason, region_of
from tests.support.cluster_jobs import apply_idle, holds, manifest

pytestmark = pytest.mark.timeout(600)

MINUTE = 60.0


def test_servers_that_hang_are_cut_off_or_refuse_stop_no_training(world: World) -> None:
    pods, end = world.pods(), time.monotonic() + MINUTE
    with hanging_api_server(world.north.cluster):
        with cut_off(world.west.api_node, api_cut(world.home)):
            for name in ("west", "north"):
                has_reason(world.job, name, "ClusterUnreachable", "no answer in time")
            world.job.train_on(*LEARNERS)
            # A job of home alone is made, stopped and deleted as ever.
            apply_idle(world.home, world.job.namespace, manifest("beside-two-that-are-away")).delete()
            status = world.job.status()
            assert holds(status, "Ready")
            assert holds(status, "Degraded", "ClusterUnreachable")
            assert status.learners.training == len(LEARNERS)
            assert region_of(status, "west").last_seen_time is not None
        with cut_off(world.west.api_node, api_cut(world.home, refused=True)):
            has_reason(world.job, "west", "ClusterUnreachable", "refused")
            wait_until(lambda: time.monotonic() > end, "a minute is over", MINUTE)
            world.job.train_on(*LEARNERS)
    for name in ("west", "north"):
        has_reason(world.job, name, None)
    assert world.pods() == pods
