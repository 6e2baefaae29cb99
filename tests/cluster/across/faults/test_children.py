"""A learner in another cluster is killed, and its objects there are deleted, changed and taken over."""

import json
from typing import Any

import pytest

from diloco_operator import labels
from testbed.kind.waiting import wait_until
from tests.support.across import EAST, LEARNERS, WEST, World, has_reason, region_of, steps_of, train_on
from tests.support.cluster_jobs import WAIT_SECONDS, condition, holds, identities, kill_container, of

pytestmark = pytest.mark.timeout(600)


def objects_of(world: World, kind: str) -> list[dict[str, Any]]:
    """In the second cluster."""
    selector = f"{labels.JOB}={world.job.name}"
    return world.west.cluster.items(kind, world.west.namespace, selector)


def test_a_killed_learner_is_started_again_there_and_rejoins(world: World) -> None:
    there = world.there(world.west)
    before, victim, other = world.job.account(), there.pod(WEST), world.job.pod(EAST)
    assert before is not None
    assert victim is not None
    assert other is not None
    kill_container(victim)
    since = steps_of(world.job)
    after = world.job.wait_for_account(
        lambda now: of(now, WEST).incarnation > of(before, WEST).incarnation and of(now, WEST).state == "Training",
        "it is back",
    )
    assert of(after, WEST).steps >= of(before, WEST).steps
    train_on(world.job, *LEARNERS, since=since)
    again = there.pod(WEST)
    assert again is not None
    assert (again.uid, again.restarts) == (victim.uid, victim.restarts + 1)
    unhurt = world.job.pod(EAST)
    assert unhurt is not None
    assert identities([unhurt]) == identities([other])


def test_what_is_deleted_or_changed_there_is_put_right_meanwhile(world: World) -> None:
    pods = world.pods()
    west, there = world.west.cluster, ("--namespace", world.west.namespace)
    (policy,), (config,), (service,) = (
        objects_of(world, kind) for kind in ("networkpolicies", "configmaps", "services")
    )
    (stateful_set,) = objects_of(world, "statefulsets")
    west.kubectl("delete", "networkpolicy", policy["metadata"]["name"], *there)
    told = {"data": dict.fromkeys(config["data"], "changed")}
    west.kubectl("patch", "configmap", config["metadata"]["name"], *there, "--patch", json.dumps(told))
    west.kubectl("label", "service", service["metadata"]["name"], f"{labels.COMPONENT}=mine", "--overwrite", *there)

    def are_as_before() -> bool:
        policies, configs, services = (
            objects_of(world, kind) for kind in ("networkpolicies", "configmaps", "services")
        )
        return (
            [one["spec"] for one in policies] == [policy["spec"]]
            and [one["data"] for one in configs] == [config["data"]]
            and [one["metadata"]["labels"] for one in services] == [service["metadata"]["labels"]]
        )

    wait_until(are_as_before, "they are as before", WAIT_SECONDS)
    assert objects_of(world, "networkpolicies")[0]["metadata"]["uid"] != policy["metadata"]["uid"]
    train_on(world.job, *LEARNERS)
    assert world.pods() == pods
    # Replicas alone, as by somebody who scales by hand.
    west.kubectl("scale", "statefulset", stateful_set["metadata"]["name"], "--replicas=2", *there)
    wait_until(lambda: objects_of(world, "statefulsets")[0]["spec"]["replicas"] == 1, "it is one again", WAIT_SECONDS)
    world.job.all_train(*LEARNERS)


def test_a_name_that_somebody_else_takes_there_is_told_and_left_to_them(world: World) -> None:
    west, there = world.west.cluster, ("--namespace", world.west.namespace)
    (config,) = objects_of(world, "configmaps")
    name = config["metadata"]["name"]
    version = config["metadata"]["resourceVersion"]
    # In one request, so that the operator does not make its own in between.
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": version}}
    west.kubectl("replace", *there, "--filename", "-", stdin=json.dumps({**body, "data": {"of": "another"}}))
    world.job.wait_for(lambda status: holds(status, "Degraded", "NameTaken"), "the name is taken")
    status = world.job.status()
    assert name in condition(status, "Degraded").message
    assert "west" in condition(status, "Degraded").message
    assert region_of(status, "east").reason is None
    train_on(world.job, *LEARNERS)
    assert west.get("configmaps", name, world.west.namespace)["data"] == {"of": "another"}
    west.kubectl("delete", "configmap", name, *there)
    wait_until(lambda: [one["data"] for one in objects_of(world, "configmaps")] == [config["data"]], "it is ours again")
    world.job.wait_for(lambda status: not holds(status, "Degraded", "NameTaken"), "it is told no more")
    has_reason(world.job, "west", None)
