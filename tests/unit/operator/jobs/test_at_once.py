"""Requests of one job that do not depend on each other run at once; those that do keep their order."""

import asyncio
from dataclasses import dataclass, field

import pytest

from diloco_operator.api_server.kinds import Kind
from diloco_operator.jobs.at_once import AT_ONCE, each
from testbed.virtual_cluster.cluster_world import ClusterWorld, MemoryApi
from testbed.virtual_cluster.operator_world import job_object
from testbed.virtual_cluster.world_pods import Object
from tests.support.virtual_time import in_virtual_time

POOLS = 12
LAST = ("Deployment", "StatefulSet")


@dataclass
class SlowApi(MemoryApi):
    """Every apply takes some turns of the event loop."""

    under_way: list[str] = field(default_factory=list)
    """Kinds of the objects that are being applied."""
    most: int = 0
    seen: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    """The kind of each object that was applied, and what else was under way then."""

    async def apply(self, kind: Kind, body: Object, *, force: bool = True) -> Object:
        self.under_way.append(kind.name)
        self.seen.append((kind.name, frozenset(self.under_way)))
        self.most = max(self.most, len(self.under_way))
        # Policies and what pods mount take longest.
        for _ in range(2 if kind.name in LAST else 5):
            await asyncio.sleep(0)
        self.under_way.remove(kind.name)
        return await super().apply(kind, body, force=force)


def test_a_job_of_many_pools_is_applied_eight_at_once_and_pods_last() -> None:
    w = ClusterWorld(job_names=())
    w.api = api = SlowApi(w.home)
    w.new_operator()
    pools = [{"name": f"p{number}", "learners": 1} for number in range(POOLS)]
    w.create(job_object(regions=[{"name": "here", "pools": pools}]))
    assert w.reconcile() is None
    assert api.most == AT_ONCE
    assert len(w.home.of_kind("StatefulSet")) == POOLS
    with_pods = [others for kind, others in api.seen if kind in LAST]
    assert len(with_pods) == POOLS + 1
    assert frozenset().union(*with_pods) == set(LAST), "no pod starts before what it mounts and its policies"


def test_results_are_in_the_order_of_the_items_whatever_ends_first() -> None:
    async def act(item: int) -> int:
        await asyncio.sleep(20 - item)
        return 2 * item

    assert in_virtual_time(each(act, range(20))) == [2 * item for item in range(20)]
    assert in_virtual_time(each(act, ())) == []


def test_the_first_error_ends_the_others_and_is_raised_as_it_is() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def act(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(1)
        if item == 1:
            raise LookupError("one")
        await asyncio.sleep(1)
        ended.append(item)

    with pytest.raises(LookupError, match="one"):
        in_virtual_time(each(act, range(20)))
    assert begun == [*range(AT_ONCE)]
    assert ended == []


def test_a_cancelled_caller_cancels_what_is_under_way() -> None:
    cancelled: list[int] = []

    async def act(item: int) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await each(act, range(20))

    in_virtual_time(scenario())
    assert sorted(cancelled) == [*range(AT_ONCE)]
