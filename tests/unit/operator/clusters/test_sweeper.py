"""When clusters are swept: those in use as soon as they are back, others one at a time, none before jobs are known."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from diloco_operator.cluster.errors import Call, UnansweredError
from diloco_operator.clusters.home import ClusterKey
from diloco_operator.clusters.kubeconfig import KubeconfigError
from diloco_operator.clusters.state import ClusterState
from diloco_operator.clusters.sweeper import EVERY_SECONDS, LOOK_SECONDS, VISIT_SECONDS, Sweeper
from tests.unit.operator.clusters.swept_cluster import Far, Home, Registry, Remote, left
from tests.unit.operator.virtual_time import run_virtually

FAR = ClusterKey("team", "far")
AWAY = UnansweredError(Call("list", "secrets"), "no answer in time")
SOON = 2 * LOOK_SECONDS
LATER = 1.3 * EVERY_SECONDS


def sweeping(registry: Registry, home: Home, scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        clusters: Any = registry
        sweeper = Sweeper(clusters, home.side, asyncio.get_running_loop().time, random.Random(0).random)
        running = asyncio.create_task(sweeper.run())
        try:
            await scenario()
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run_virtually(main())


def test_a_cluster_in_use_is_swept_and_again_now_and_then() -> None:
    far, home = Far(), Home()
    far.put(left("a"))

    async def scenario() -> None:
        await asyncio.sleep(SOON)
        assert far.names == set()
        far.put(left("b"))
        await asyncio.sleep(0.7 * EVERY_SECONDS)
        assert far.names == {"b"}
        await asyncio.sleep(LATER)
        assert far.names == set()
        assert far.lists == 0, "it is known what is there"

    sweeping(Registry(named={FAR: Remote(far)}), home, scenario)


def test_a_cluster_that_comes_back_is_swept_soon() -> None:
    far, home = Far(), Home()
    remote = Remote(far)

    async def scenario() -> None:
        await asyncio.sleep(SOON)
        remote.state = ClusterState.UNREACHABLE
        far.put(left("a"))
        await asyncio.sleep(LATER)
        assert far.names == {"a"}
        remote.state, remote.whole = ClusterState.READY, False
        await asyncio.sleep(LATER)
        assert far.names == {"a"}, "it is not known yet what is there"
        remote.whole = True
        await asyncio.sleep(SOON)
        assert far.names == set()

    sweeping(Registry(named={FAR: remote}), home, scenario)


def test_a_cluster_that_was_away_for_a_moment_is_swept_soon() -> None:
    far, home = Far(), Home()
    remote = Remote(far)

    async def scenario() -> None:
        await asyncio.sleep(SOON)
        far.put(left("a"))
        await asyncio.sleep(SOON)
        assert far.names == {"a"}
        remote.returns += 1  # between two looks
        await asyncio.sleep(SOON)
        assert far.names == set()

    sweeping(Registry(named={FAR: remote}), home, scenario)


def test_nothing_is_opened_or_swept_before_jobs_and_id_are_known() -> None:
    used, unused, home = Far(), Far(), Home(known=False)
    used.put(left("a"))
    unused.put(left("b"))
    registry = Registry("", {FAR: Remote(used)}, {ClusterKey("team", "unused"): unused})

    async def scenario() -> None:
        await asyncio.sleep(LATER)
        registry.home_id = "home-1"
        await asyncio.sleep(LATER)
        assert (used.names, unused.names, registry.visits) == ({"a"}, {"b"}, [])
        home.known = True
        await asyncio.sleep(2 * SOON)
        assert (used.names, unused.names) == (set(), set())

    sweeping(registry, home, scenario)


def test_a_cluster_that_no_job_names_is_visited_now_and_then() -> None:
    far, home = Far(), Home()
    far.put(left("a"))
    registry = Registry(kept={FAR: far})

    async def scenario() -> None:
        await asyncio.sleep(SOON)
        assert far.names == set()
        assert registry.used == {}
        far.put(left("b"))
        await asyncio.sleep(0.7 * EVERY_SECONDS)
        assert len(registry.visits) == 1
        await asyncio.sleep(LATER)
        assert far.names == set()

    sweeping(registry, home, scenario)


def test_a_cluster_is_visited_at_once_when_its_last_job_is_gone() -> None:
    far, home = Far(), Home({("team", "demo"): "gone"})
    far.put(left("a"))
    registry = Registry(named={FAR: Remote(far)}, kept={FAR: far})

    async def scenario() -> None:
        await asyncio.sleep(SOON)
        assert registry.visits == [], "it is in use"
        home.jobs.clear()
        registry.named.clear()
        await asyncio.sleep(SOON)
        assert far.names == set()

    sweeping(registry, home, scenario)


def test_one_that_hangs_is_left_and_the_others_get_their_turn() -> None:
    hangs, far, home = Far(answers_after_seconds=10 * EVERY_SECONDS), Far(), Home()
    far.put(left("a"))
    registry = Registry(kept={ClusterKey("a-team", "hangs"): hangs, FAR: far})

    async def scenario() -> None:
        await asyncio.sleep(VISIT_SECONDS + 2 * SOON)
        assert far.names == set()
        assert registry.most_open == 1

    sweeping(registry, home, scenario)


def test_many_clusters_of_one_namespace_do_not_hold_up_the_others() -> None:
    away, far, home = Far(away=AWAY), Far(), Home()
    far.put(left("a"))
    many = {ClusterKey("a-team", f"far-{index:03}"): away for index in range(500)}
    registry = Registry(kept={**many, FAR: far})

    async def scenario() -> None:
        await asyncio.sleep(2 * SOON)
        assert far.names == set()
        assert 1 <= away.lists < 10

    sweeping(registry, home, scenario)


def test_a_cluster_that_does_not_answer_is_tried_again_ever_more_rarely() -> None:
    far, home = Far(away=AWAY), Home()
    far.put(left("a"))
    registry = Registry(kept={FAR: far})

    async def scenario() -> None:
        await asyncio.sleep(10 * EVERY_SECONDS)
        assert 10 <= far.lists < 30
        far.away = None
        await asyncio.sleep(LATER)
        assert far.names == set()

    sweeping(registry, home, scenario)


def test_a_kubeconfig_that_cannot_be_used_is_no_failure_of_the_others() -> None:
    far, home = Far(), Home()
    far.put(left("a"))
    unusable = Far(away=KubeconfigError("Secret far: has no key"))
    registry = Registry(kept={ClusterKey("team", "far", "ca.crt"): unusable, ClusterKey("team", "far", "two"): far})

    async def scenario() -> None:
        await asyncio.sleep(SOON)
        assert far.names == set()
        await asyncio.sleep(0.7 * EVERY_SECONDS)
        assert len(registry.visits) == 2

    sweeping(registry, home, scenario)


def test_what_nobody_foresaw_in_one_cluster_ends_no_sweep_of_another() -> None:
    broken, far, home = Far(away=TypeError("what is this?")), Far(), Home()
    far.put(left("a"))
    registry = Registry(kept={ClusterKey("a-team", "broken"): broken, FAR: far})

    async def scenario() -> None:
        await asyncio.sleep(2 * SOON)
        assert far.names == set()

    sweeping(registry, home, scenario)
