"""A job that trains in one virtual cluster or several, and what its Degraded condition says."""

import json
from functools import cache
from typing import Any

from testbed.virtual_cluster.clusters_world import ClustersWorld, clusters_job
from testbed.virtual_cluster.operator_world import World, job_object

OLD = "demo--us-west-old-"
"""The names of the pods of the pool us-west/old, without their numbers."""


def training_world(**spec: Any) -> World:
    """A job of four learners after a minute: it trains, and is far from its end. Made once, and copied."""
    return _trained(json.dumps(spec)).another()


@cache
def _trained(spec: str) -> World:
    world = World(job=job_object(tokens=100_000_000, **json.loads(spec)))
    world.run(60)
    assert world.status["phase"] == "Training"
    return world


def training_abroad(**spec: Any) -> ClustersWorld:
    """The same of a job with two of its regions in other clusters."""
    return _trained_abroad(json.dumps(spec)).another()


@cache
def _trained_abroad(spec: str) -> ClustersWorld:
    world = ClustersWorld(job=clusters_job(**json.loads(spec)))
    world.run(60)
    assert world.status["learners"]["summary"] == "4/4"
    assert world.condition("Degraded")["status"] == "False"
    return world


def lose(world: World, name: str) -> str:
    """Let the node of a pod be lost, which is to end; returns the pod's uid."""
    uid = str(world.pods.pods[name]["metadata"]["uid"])
    world.pods.stuck.add(name)
    world.pods.delete(name)
    return uid


def degraded(world: World) -> tuple[str, str, str]:
    """Status, reason and message."""
    found = world.condition("Degraded")
    return found["status"], found["reason"], found["message"]
