"""Learners that are given up or left out, in a virtual cluster: their pods have no node, and no other is touched."""

from typing import Any

import pytest

from diloco.spec.learner_orders import READMITTED_FILE
from diloco_operator.decide.held_pods import MOST_WITH_THEM
from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.operator_world import job_object
from testbed.virtual_cluster.world_pods import crashed
from tests.unit.operator.training_cluster import training

OLD = "demo--us-west-old"
MIDDLE, LAST = f"{OLD}-1", f"{OLD}-2"
GIVEN_UP = "us-west/old/1"


def uids(world: ClusterWorld) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in world.api.pods.pods.items()}


def gated(world: ClusterWorld) -> set[str]:
    return {name for name, pod in world.api.pods.pods.items() if "schedulingGates" in pod["spec"]}


def old_set(world: ClusterWorld) -> dict[str, Any]:
    found: dict[str, Any] = world.of_kind("StatefulSet")[OLD]["spec"]
    return found


def pool(world: ClusterWorld) -> dict[str, Any]:
    found: dict[str, Any] = world.status()["regions"][1]["pools"][0]
    return found


def reasons(world: ClusterWorld) -> list[str]:
    return [event["reason"] for event in world.api.events]


def give_up(world: ClusterWorld) -> None:
    world.api.pods.troubles[MIDDLE] = crashed(3, "given up")
    world.syncers["demo"].given_up = {GIVEN_UP}


def given_up() -> ClusterWorld:
    world = training()
    give_up(world)
    world.run(60)
    assert gated(world) == {MIDDLE}
    return world


def test_the_pod_of_a_given_up_learner_takes_no_node() -> None:
    w = training()
    before = uids(w)
    give_up(w)
    w.run(60)
    assert gated(w) == {MIDDLE}
    assert {name: uid for name, uid in uids(w).items() if name != MIDDLE} == {
        name: uid for name, uid in before.items() if name != MIDDLE
    }
    assert "schedulingGates" not in old_set(w)["template"]["spec"]
    assert (pool(w)["givenUp"], pool(w)["held"], pool(w)["desired"], pool(w)["ready"]) == ([1], 1, 3, 2)
    assert reasons(w).count("LearnerReleased") == 1
    assert (w.condition("Ready")["status"], w.condition("Degraded")["reason"]) == ("True", "LearnersGivenUp")


def test_once_it_is_held_back_nothing_is_written_any_more() -> None:
    w = given_up()
    w.run(30)
    w.api.writes.clear()
    w.run(120)
    assert {kind for _, kind, _ in w.api.writes} <= {"DiLoCoJob"}


def test_an_operator_without_memory_goes_on_where_the_last_one_was() -> None:
    w = training()
    before = uids(w)
    give_up(w)
    for _ in range(40):
        w.new_operator()
        w.reconcile()
        w.tick()
    assert gated(w) == {MIDDLE}
    assert "schedulingGates" not in old_set(w)["template"]["spec"]
    assert all(uids(w)[name] == before[name] for name in before if name != MIDDLE)


def test_it_stays_out_while_the_syncer_does_not_answer() -> None:
    w = given_up()
    held = uids(w)[MIDDLE]
    syncer = next(iter(w.pods_of("syncer")))
    w.api.pods.troubles[syncer] = crashed(1, "no disk")
    w.tick()
    w.syncers["demo"].given_up = set()
    w.new_operator()
    w.run(60)
    assert uids(w)[MIDDLE] == held
    assert pool(w)["givenUp"] == [1]


def test_the_annotation_lets_it_back_in_once() -> None:
    w = given_up()
    before = uids(w)
    del w.api.pods.troubles[MIDDLE]
    w.annotate(readmit=GIVEN_UP)
    w.run(60)
    assert gated(w) == set()
    assert all(uids(w)[name] == before[name] for name in before if name != MIDDLE)
    assert GIVEN_UP in w.syncers["demo"].joined
    assert "diloco.dev/readmit" not in w.job()["metadata"]["annotations"]
    assert READMITTED_FILE not in w.of_kind("ConfigMap")["demo-job"]["data"]
    assert old_set(w).get("updateStrategy", {}).get("type") != "OnDelete"
    assert "givenUp" not in pool(w)
    assert "held" not in pool(w)
    assert reasons(w).count("LearnerReadmitted") == 1
    assert w.condition("Degraded")["status"] == "False"
    give_up(w)
    w.run(60)
    assert gated(w) == {MIDDLE}, "the annotation holds once"


def test_an_order_is_kept_until_a_syncer_that_was_away_has_taken_it() -> None:
    w = given_up()
    w.annotate(readmit=GIVEN_UP)
    w.reconcile()
    told = w.of_kind("ConfigMap")["demo-job"]["data"][READMITTED_FILE]
    syncer = next(iter(w.pods_of("syncer")))
    w.api.pods.pods[syncer]["status"] = crashed(1, "no disk")
    w.api.pods.set_controller(w.of_kind("Deployment")["demo-syncer"])
    w.new_operator()
    w.reconcile()
    assert w.of_kind("ConfigMap")["demo-job"]["data"][READMITTED_FILE] == told
    assert w.job()["metadata"]["annotations"]["diloco.dev/readmit"] == GIVEN_UP


def test_a_name_that_is_no_learner_is_told_and_the_others_are_let_in() -> None:
    w = given_up()
    del w.api.pods.troubles[MIDDLE]
    w.annotate(readmit=f"us-west/old/7, {GIVEN_UP}")
    w.run(60)
    assert gated(w) == set()
    assert w.job()["metadata"]["annotations"]["diloco.dev/readmit"] == "us-west/old/7"
    assert (w.condition("Degraded")["reason"], w.condition("Degraded")["message"]) == (
        "ReadmissionIgnored",
        "metadata.annotations[diloco.dev/readmit]: 'us-west/old/7' is no learner of this job; use REGION/POOL/INDEX",
    )


def test_a_learner_is_left_out_by_its_index_and_comes_back() -> None:
    w = training()
    before = uids(w)
    w.change_pool(region=1, without=[1])
    w.run(90)
    assert gated(w) == {MIDDLE}
    assert (pool(w)["desired"], pool(w)["training"], pool(w)["held"]) == (2, 2, 1)
    assert w.condition("Degraded")["status"] == "False"
    assert w.condition("Ready")["status"] == "True"
    w.change_pool(region=1, without=[])
    w.run(60)
    assert gated(w) == set()
    assert (pool(w)["desired"], pool(w)["training"]) == (3, 3)
    assert all(uids(w)[name] == before[name] for name in before if name != MIDDLE)


def test_of_a_new_job_a_learner_that_is_left_out_never_starts() -> None:
    w = ClusterWorld(job_names=())
    job = job_object(tokens=10_000_000)
    job["spec"]["regions"][1]["pools"][0]["without"] = [0, 2]
    w.create(job)
    w.run(60)
    assert w.status()["phase"] == "Training"
    assert gated(w) == {f"{OLD}-0", LAST}
    assert not {"us-west/old/0", "us-west/old/2"} & w.syncers["demo"].ever


def test_a_suspended_job_has_no_held_pods_and_holds_them_when_it_resumes() -> None:
    w = given_up()
    w.change(suspend=True)
    w.run(120)
    assert (w.condition("Suspended")["status"], w.api.pods.pods) == ("True", {})
    assert pool(w)["givenUp"] == [1]
    w.change(suspend=False)
    w.run(60)
    assert gated(w) == {MIDDLE}
    assert w.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("learners", [2, 5])
def test_a_pool_is_scaled_across_a_learner_that_is_held_back(learners: int) -> None:
    w = given_up()
    before = uids(w)
    w.change_pool(region=1, learners=learners)
    w.run(90)
    assert gated(w) == {MIDDLE}
    assert {name for name in uids(w) if name.startswith(OLD)} == {f"{OLD}-{index}" for index in range(learners)}
    assert all(uids(w)[name] == before[name] for name in (f"{OLD}-0", MIDDLE))
    assert pool(w)["training"] == learners - 1


def test_scaled_below_it_nothing_is_held_back_any_more() -> None:
    w = given_up()
    w.change_pool(region=1, learners=1)
    w.run(90)
    assert gated(w) == set()
    assert "held" not in pool(w)
    assert old_set(w).get("updateStrategy", {}).get("type") != "OnDelete"


def test_changed_resources_reach_the_other_pods_one_after_the_other() -> None:
    w = given_up()
    before = uids(w)
    w.change_pool(region=1, resources={"limits": {"cpu": "2"}})
    most_away = 0
    for _ in range(60):
        w.run(2)
        there = [name for name, pod in w.api.pods.pods.items() if "deletionTimestamp" not in pod["metadata"]]
        most_away = max(most_away, 3 - sum(name.startswith(OLD) for name in there))
    assert most_away == 1
    changed = {name for name, uid in uids(w).items() if before.get(name) != uid}
    assert changed == {f"{OLD}-0", LAST}
    assert gated(w) == {MIDDLE}


def test_others_that_are_created_meanwhile_start_after_all() -> None:
    w = training()
    give_up(w)
    w.api.pods.delete(LAST)
    w.run(90)
    assert gated(w) == {MIDDLE}
    assert pool(w)["training"] == 2


def test_a_pool_of_which_much_is_missing_is_not_held_up() -> None:
    w = training()
    w.change_pool(region=1, learners=MOST_WITH_THEM + 4)
    w.syncers["demo"].given_up = {GIVEN_UP}
    w.reconcile()
    assert "schedulingGates" not in old_set(w)["template"]["spec"]
    w.run(90)
    assert gated(w) == {MIDDLE}
    assert pool(w)["training"] == MOST_WITH_THEM + 3


def test_a_held_pod_on_a_lost_node_keeps_no_other_pod_from_starting() -> None:
    w = training()
    give_up(w)
    w.api.pods.stuck = {MIDDLE}
    w.change(failurePolicy={"lostPods": {"action": "Wait", "afterSeconds": 10}})
    w.run(120)
    assert "schedulingGates" not in old_set(w)["template"]["spec"]
    assert "deletionTimestamp" in w.api.pods.pods[MIDDLE]["metadata"]


def test_the_job_ends_while_a_learner_is_held_back() -> None:
    w = given_up()
    w.syncers["demo"].fails("the budget of patience is used up")
    w.run(90)
    assert w.status()["phase"] == "Failed"
    assert w.api.pods.pods == {}
