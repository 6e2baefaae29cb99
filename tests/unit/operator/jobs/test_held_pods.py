"""Learners that are given up or left out, in a virtual cluster: their pods have no node, and no other is touched."""

import pytest

from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.operator_world import job_object
from testbed.virtual_cluster.world_pods import crashed
from tests.unit.operator.jobs.training_cluster import (
    LAST,
    MIDDLE,
    OLD,
    forbids_pods_to_be_deleted,
    gated,
    give_up,
    given_up,
    old_set,
    pool,
    reasons,
    training,
    uids,
)


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
    assert reasons(w).count("LearnerHeld") == 1
    assert (w.condition("Ready")["status"], w.condition("Degraded")["reason"]) == ("True", "LearnersGivenUp")
    w.run(30)
    w.api.writes.clear()
    w.run(120)
    assert {kind for _, kind, _ in w.api.writes} <= {"DiLoCoJob"}, "nothing more is written"


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
    syncer = next(iter(w.home.pods_of("syncer", "demo")))
    w.pods.troubles[syncer] = crashed(1, "no disk")
    w.tick()
    w.syncers["demo"].given_up = set()
    w.new_operator()
    w.run(60)
    assert uids(w)[MIDDLE] == held
    assert pool(w)["givenUp"] == [1]


def test_of_a_new_job_a_learner_that_is_left_out_never_starts() -> None:
    w = ClusterWorld(job_names=())
    job = job_object(tokens=10_000_000)
    job["spec"]["regions"][1]["pools"][0]["excludedIndices"] = [0, 2]
    w.create(job)
    w.run(60)
    assert w.status()["phase"] == "Training"
    assert gated(w) == {f"{OLD}-0", LAST}
    assert not {"us-west/old/0", "us-west/old/2"} & w.syncers["demo"].ever


def test_without_the_right_to_delete_pods_a_learner_that_stays_is_told() -> None:
    w = training()
    w.api.failing = forbids_pods_to_be_deleted
    before = uids(w)
    w.change_pool(region=1, excludedIndices=[1])
    w.run(20)
    why = "the operator has no right to delete pods in this namespace"
    found = w.condition("Degraded")
    assert (found["reason"], found["message"]) == ("PodDeletionForbidden", f"us-west/old/1 to be held back: {why}")
    w.api.writes.clear()
    w.run(150)
    assert "StatefulSet" not in {kind for _, kind, _ in w.api.writes}, "its template stays"
    assert uids(w) == before
    w.api.failing = lambda *_: None
    w.run(60)
    assert gated(w) == {MIDDLE}
    assert w.condition("Degraded")["status"] == "False"
    w.api.failing = forbids_pods_to_be_deleted
    w.change_pool(region=1, excludedIndices=[])
    w.run(20)
    told = f"us-west/old/1 to be held back no longer: {why}"
    assert w.condition("Degraded")["message"].startswith(told)


def test_a_suspended_job_has_no_held_pods_and_holds_them_when_it_resumes() -> None:
    w = given_up()
    w.change(suspend=True)
    w.run(120)
    assert (w.condition("Suspended")["status"], w.pods.pods) == ("True", {})
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
    assert "LearnerReadmitted" not in reasons(w)


def test_scaled_below_it_nothing_is_held_back_any_more() -> None:
    w = given_up()
    w.change_pool(region=1, learners=1)
    w.run(90)
    assert gated(w) == set()
    assert "held" not in pool(w)
    assert "LearnerReadmitted" not in reasons(w), "its pool is smaller"
