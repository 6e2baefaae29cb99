"""A job that trains in a virtual cluster, and what its Degraded condition says."""

from typing import Any

from testbed.virtual_cluster.operator_world import World, job_object

OLD = "demo--us-west-old-"
"""The names of the pods of the pool us-west/old, without their numbers."""


def training_world(**spec: Any) -> World:
    """A job of four learners after a minute: it trains, and is far from its end."""
    world = World(job=job_object(tokens=100_000_000, **spec))
    world.run(60)
    assert world.status["phase"] == "Training"
    return world


def degraded(world: World) -> tuple[str, str, str]:
    """Status, reason and message."""
    found = world.condition("Degraded")
    return found["status"], found["reason"], found["message"]
