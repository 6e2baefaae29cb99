"""A learner in another cluster is killed, and its objects there are deleted and changed."""

import json

import pytest

from diloco_operator import labels
from testbed.kind.waiting import wait_until
from tests.support.across import EAST, LEARNERS, WEST, World
from tests.support.cluster_jobs import identities
from tests.support.cluster_nodes import kill_container

pytestmark = pytest.mark.timeout(600)


def test_a_killed_learner_is_started_again_there_and_rejoins(world: World) -> None:
    there = world.there(world.west)
    before, victim, other = world.job.account(), there.pod(WEST), world.job.pod(EAST)
    kill_container(victim)
    since = world.job.account()
    world.job.rejoins(WEST, before)
    world.job.train_on(*LEARNERS, since=since)
    again = there.pod(WEST)
    assert (again.uid, again.restarts) == (victim.uid, victim.restarts + 1)
    assert identities([world.job.pod(EAST)]) == identities([other])


def test_what_is_deleted_or_changed_there_is_put_right_meanwhile(world: World) -> None:
    pods, there = world.pods(), world.there(world.west)
    kinds = ("networkpolicies", "configmaps", "services", "statefulsets")
    (policy,), (config,), (service,), (stateful_set,) = map(there.items, kinds)
    there.kubectl("delete", "networkpolicy", policy["metadata"]["name"])
    told = {"data": dict.fromkeys(config["data"], "changed")}
    there.kubectl("patch", "configmap", config["metadata"]["name"], "--patch", json.dumps(told))
    there.kubectl("label", "service", service["metadata"]["name"], f"{labels.COMPONENT}=mine", "--overwrite")

    def are_as_before() -> bool:
        policies, configs, services, _ = map(there.items, kinds)
        return (
            [one["spec"] for one in policies] == [policy["spec"]]
            and [one["data"] for one in configs] == [config["data"]]
            and [one["metadata"]["labels"] for one in services] == [service["metadata"]["labels"]]
        )

    wait_until(are_as_before, "they are as before")
    assert there.items("networkpolicies")[0]["metadata"]["uid"] != policy["metadata"]["uid"]
    world.job.train_on(*LEARNERS)
    assert world.pods() == pods
    # Replicas alone, as by somebody who scales by hand.
    there.kubectl("scale", "statefulset", stateful_set["metadata"]["name"], "--replicas=2")
    wait_until(lambda: there.items("statefulsets")[0]["spec"]["replicas"] == 1, "it is one again")
    world.job.all_train(*LEARNERS)
