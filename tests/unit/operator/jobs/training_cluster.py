"""A virtual cluster in which a job trains, or a learner is given up, and what is seen of its pods."""

import copy
from functools import cache
from typing import Any

from diloco_operator.api_server.errors import ApiError, Call, of_status
from testbed.virtual_cluster.cluster_world import NAMESPACE, ClusterWorld
from testbed.virtual_cluster.world_pods import crashed

OLD = "demo--us-west-old"
MIDDLE, LAST = f"{OLD}-1", f"{OLD}-2"
GIVEN_UP = "us-west/old/1"


def training() -> ClusterWorld:
    """After a minute: every learner makes steps. Made once, and copied, as `given_up`."""
    return copy.deepcopy(_training())


@cache
def _training() -> ClusterWorld:
    world = ClusterWorld()
    world.run(60)
    assert world.status()["phase"] == "Training"
    return world


def uids(world: ClusterWorld) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in world.pods.pods.items()}


def gated(world: ClusterWorld) -> set[str]:
    return {name for name, pod in world.pods.pods.items() if "schedulingGates" in pod["spec"]}


def old_set(world: ClusterWorld) -> dict[str, Any]:
    found: dict[str, Any] = world.home.of_kind("StatefulSet")[OLD]["spec"]
    return found


def pool(world: ClusterWorld) -> dict[str, Any]:
    found: dict[str, Any] = world.status()["regions"][1]["pools"][0]
    return found


def reasons(world: ClusterWorld) -> list[str]:
    return [event["reason"] for event in world.api.events]


def forbids_pods_to_be_deleted(verb: str, kind: str, name: str, _body: Any) -> ApiError | None:
    """An API server that lets the operator delete no pod."""
    call = Call(verb, kind, NAMESPACE, name)
    return of_status(call, 403, {"message": "forbidden"}) if (verb, kind) == ("delete", "Pod") else None


def give_up(world: ClusterWorld) -> None:
    world.pods.troubles[MIDDLE] = crashed(3, "given up")
    world.syncers["demo"].given_up = {GIVEN_UP}


def given_up() -> ClusterWorld:
    return copy.deepcopy(_given_up())


@cache
def _given_up() -> ClusterWorld:
    world = training()
    give_up(world)
    world.run(60)
    assert gated(world) == {MIDDLE}
    return world
