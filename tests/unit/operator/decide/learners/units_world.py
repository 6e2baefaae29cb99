"""A job whose learners have two nodes each, in a virtual cluster."""

import json
from functools import cache
from typing import Any

from testbed.virtual_cluster.operator_world import World, job_object

POOL = "here/big"
POD = "demo--here-big-"
"""The names of its pods, without their numbers."""


def units_world(learners: int = 2, *, room: int | None = None, then: int = 0, **pool: Any) -> World:
    """A job of one pool with so many learners after a minute; ``then``: of a second pool, with one node each."""
    pools = [{"name": "big", "learners": learners, "nodesPerLearner": 2, **pool}]
    pools += [{"name": "small", "learners": then}] if then else []
    return _world(json.dumps(pools), room).another()


@cache
def _world(pools: str, room: int | None) -> World:
    world = World(job=job_object(tokens=100_000_000, regions=[{"name": "here", "pools": json.loads(pools)}]))
    world.pods.nodes_per_learner = {POOL: 2}
    world.pods.room = room
    world.run(60)
    return world


def pool(world: World) -> dict[str, Any]:
    """The pool's status."""
    found: dict[str, Any] = world.status["regions"][0]["pools"][0]
    return found


def placed(world: World) -> list[int]:
    """The indices of the pods that have a node."""
    pods = world.pods.pods.items()
    return sorted(int(name.removeprefix(POD)) for name, pod in pods if POD in name and "nodeName" in pod["spec"])


def said(world: World, reason: str) -> list[str]:
    """What events with this reason say."""
    return [event.message for event in world.events if event.reason == reason]
