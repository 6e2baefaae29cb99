"""A cluster that was restored from a backup of home deletes and changes nothing that home runs elsewhere."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from diloco_operator.api_server.kinds import LEASE
from diloco_operator.cluster_state import ClusterState
from diloco_operator.leases.lease import MARK
from testbed.api_server.server import ApiServer
from tests.support.remote_scene import Far, Scene, scene_at


@asynccontextmanager
async def copied(server: ApiServer, scene: Scene, version: int) -> AsyncIterator[Scene]:
    """Another operator with this home's id, jobs and kubeconfigs, whose store has come as far as ``version``."""
    async with scene_at(server, scene.job.namespace, identity="copy", version=version) as copy:
        copy.use("far")
        yield copy


def lease_in(far: Far) -> dict[str, Any]:
    (lease,) = far.server.request("GET", LEASE.path(far.namespace))[1]["items"]
    found: dict[str, Any] = lease
    return found


def attempts(scene: Scene) -> int:
    """How often it has read the Lease."""
    return sum((call.verb, call.resource) == ("get", LEASE.resource) for call in scene.requests)


async def test_a_copy_waits_for_the_lease_and_takes_none_of_a_later_time(
    server: ApiServer, scene: Scene, far: Far
) -> None:
    seen = await scene.reach(far)
    assert seen.takes_writes
    assert await scene.write("mine") is None
    lease = lease_in(far)
    assert lease["spec"]["holderIdentity"] == "scene"
    async with copied(server, scene, version=1) as copy:
        told = await copy.becomes(ClusterState.HELD_BY_OTHER)
        assert not told.takes_writes
        assert "restored from a backup" in told.message
        assert lease["metadata"]["name"] in told.message
        # Home stops, and releases it.
        scene.use()
        await copy.until("it is released", lambda: not lease_in(far)["spec"]["holderIdentity"])
        asked = attempts(copy)
        await copy.until("the copy has asked again", lambda: attempts(copy) >= asked + 2)
        assert not copy.seen().takes_writes
        # A person decides that the copy takes home's place.
        assert far.server.request("DELETE", LEASE.path(far.namespace, lease["metadata"]["name"]))[0] == 200
        assert (await copy.becomes(ClusterState.READY)).takes_writes
    assert int(lease_in(far)["metadata"]["annotations"][MARK]) == 1


async def test_one_of_two_copies_of_the_same_time_holds_the_lease(server: ApiServer, scene: Scene, far: Far) -> None:
    await scene.reach(far)
    later = 10**15
    async with copied(server, scene, version=later) as copy:
        told = await copy.becomes(ClusterState.HELD_BY_OTHER)
        assert "is held by a copy of this cluster, or by its original" in told.message
        assert scene.seen().takes_writes
        scene.use()
        await copy.becomes(ClusterState.READY)


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_without_the_right_to_the_lease_nothing_is_written(scene: Scene, far: Far, verb: str) -> None:
    far.allow((verb, LEASE.plural))
    scene.secret("far", far.kubeconfig())
    scene.use("far")
    seen = await scene.becomes(ClusterState.FORBIDDEN)
    assert not seen.takes_writes
    assert f"does not allow to {verb} leases.coordination.k8s.io" in seen.message
    far.allow()
    assert (await scene.becomes(ClusterState.READY)).takes_writes
