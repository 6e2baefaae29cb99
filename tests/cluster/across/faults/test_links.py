"""The link to other clusters is cut for a minute, both ways and in one direction: learners train on and rejoin.

One is cut in the middle of a fragment. Nothing is restarted.
"""

import time

import pytest

from testbed.kind.cuts import Cut, cut_off
from testbed.kind.peers import nodes_of
from testbed.kind.waiting import wait_until
from tests.support.across import EAST, LEARNERS, NORTH, WEST, World, api_cut, has_reason, region_of, sync_cut
from tests.support.cluster_jobs import holds, of

pytestmark = pytest.mark.timeout(600)

MINUTE = 60.0
AWAY = {"west": WEST, "north": NORTH}
INTO_A_FRAGMENT_BYTES = 20_000
"""Nearly all bytes to home are of outer gradients, each of more than this, several of which are sent each second."""


def test_links_cut_for_a_minute_cost_only_what_was_on_them(world: World) -> None:
    pods, before = world.pods(), world.job.account()
    both_ways = Cut(nodes_of(world.home).all_addresses)
    to_home = sync_cut(world.job, "out", INTO_A_FRAGMENT_BYTES)
    with (
        cut_off(world.north.nodes.addresses, both_ways),
        cut_off(world.west.nodes.addresses, to_home, api_cut(world.home)),
    ):
        end = time.monotonic() + MINUTE
        missed = world.job.misses(*AWAY.values())
        for name in AWAY:
            has_reason(world.job, name, "ClusterUnreachable", "no answer in time")
        status = world.job.wait_for(
            lambda now: all(region_of(now, name).training == 0 for name in AWAY), "nobody there is said to train"
        )
        assert holds(status, "Ready")
        world.job.train_on(EAST)
        # They are watched through their own API servers.
        for far, learner in ((world.west, WEST), (world.north, NORTH)):
            world.there(far).goes_on(learner, of(missed, learner).steps)
        wait_until(lambda: time.monotonic() > end, "a minute is over", MINUTE)
    after = world.job.all_train(*LEARNERS)
    world.job.train_on(*LEARNERS)
    for learner in AWAY.values():
        # Admitted anew by the same syncer, as the same process, with the steps made meanwhile.
        assert of(after, learner).incarnation > of(before, learner).incarnation
        assert of(after, learner).restarts == of(before, learner).restarts
        assert of(after, learner).steps > of(missed, learner).steps
    world.job.merges(*AWAY.values(), since=after)
    for name in AWAY:
        has_reason(world.job, name, None)
    assert world.pods() == pods


def test_learners_cut_off_alone_are_missed_while_their_cluster_answers(world: World) -> None:
    pods = world.pods()
    with cut_off(world.west.nodes.addresses, sync_cut(world.job)):
        world.job.misses(WEST)
        status = world.job.wait_for(lambda now: region_of(now, "west").training == 0, "the status says so")
        assert region_of(status, "west").reason is None
        assert region_of(status, "west").pools[0].ready == 1
        world.job.train_on(EAST, NORTH)
    world.job.all_train(*LEARNERS)
    world.job.train_on(*LEARNERS)
    assert world.pods() == pods
