"""Pods on nodes that do not respond, in a virtual cluster: which are deleted by force, and why the others stay."""

from typing import Any

import pytest

from diloco_operator.decide.lost_pods import MOST_AT_ONCE, policy_of
from testbed.virtual_cluster.operator_world import World
from tests.unit.operator.decide.training_world import OLD, degraded, training_world

VICTIM = f"{OLD}1"
PREFIX = "1 of 3 learners of us-west/old lost: node-1 does not respond"


def lost_learner(w: World, *names: str) -> dict[str, str]:
    """Let these learners' node be lost; returns the uids of their pods."""
    uids = {name: w.pods.pods[name]["metadata"]["uid"] for name in names or (VICTIM,)}
    for name in uids:
        w.pods.stuck.add(name)
        w.pods.delete(name)
    return uids


def uids(w: World) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in w.pods.pods.items()}


def mount(w: World, **volume: Any) -> None:
    w.pods.pods[VICTIM]["spec"]["volumes"] = [{"name": "data", **volume}]


def test_a_lost_learner_is_replaced_and_nobody_else_is_touched() -> None:
    w = training_world()
    before, lost = uids(w), lost_learner(w)
    w.run(75)
    assert uids(w) == before, "its time is not over: 20 s of grace and 60 s"
    w.run(20)
    after = uids(w)
    assert after[VICTIM] != lost[VICTIM]
    assert {name: uid for name, uid in after.items() if name != VICTIM} == {
        name: uid for name, uid in before.items() if name != VICTIM
    }
    (deletion,) = w.forced
    assert (deletion.uid, deletion.whose, deletion.node) == (lost[VICTIM], "us-west/old/1", "node-1")
    assert deletion.reason == "LostPodReplaced"
    assert "NodeLost" in [event.reason for event in w.events]
    w.run(30)
    assert degraded(w)[0] == "False"
    assert w.status["learners"]["summary"] == "4/4"
    assert len(w.forced) == 1


def test_the_time_is_the_manifests_and_may_change_meanwhile() -> None:
    w = training_world(failurePolicy={"lostPods": {"afterSeconds": 600}})
    lost_learner(w)
    w.run(300)
    assert not w.forced
    assert degraded(w)[0] == "False"
    w.change(failurePolicy={"lostPods": {"afterSeconds": 30}})
    w.run(10)
    assert len(w.forced) == 1


def test_it_is_looked_at_again_when_the_time_is_over() -> None:
    w = training_world(failurePolicy={"lostPods": {"afterSeconds": 10}})
    lost_learner(w)
    w.tick(28)
    w.reconcile()
    assert w.again_in_seconds == pytest.approx(2.0, abs=1.0)


def test_wait_keeps_the_pod_and_says_so() -> None:
    w = training_world(failurePolicy={"lostPods": {"action": "Wait"}})
    lost_learner(w)
    w.run(120)
    assert not w.forced
    expected = f"{PREFIX}, and pod {VICTIM} stays: spec.failurePolicy.lostPods.action is not Replace"
    assert degraded(w) == ("True", "LostPodKept", expected)


def test_a_learner_that_the_syncer_hears_from_keeps_its_pod() -> None:
    w = training_world()
    lost_learner(w)
    w.still_heard.add(VICTIM)
    w.run(120)
    assert not w.forced
    assert degraded(w) == (
        "True",
        "LostPodKept",
        f"{PREFIX}, and pod {VICTIM} stays: the syncer still hears from the learner",
    )
    w.still_heard.clear()
    w.run(15)
    assert len(w.forced) == 1


def test_a_learner_that_is_connected_without_steps_counts_as_heard() -> None:
    w = training_world()
    w.syncer.stalled.add("us-west/old/1")
    lost_learner(w)
    w.run(120)
    assert not w.forced
    assert degraded(w)[1] == "LostPodKept"


def test_without_the_syncers_word_no_pod_is_deleted() -> None:
    w = training_world()
    lost_learner(w)
    w.unreachable = "no answer within 3 s"
    w.run(150)
    assert not w.forced
    assert "stays: the syncer does not answer" in degraded(w)[2]
    w.unreachable = ""
    w.run(15)
    assert len(w.forced) == 1


def test_a_syncer_that_has_just_started_is_not_believed_yet() -> None:
    w = training_world()
    lost_learner(w)
    w.tick(120)
    for condition in w.deployment["status"]["conditions"]:
        condition["lastTransitionTime"] = w.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    w.reconcile()
    assert not w.forced
    assert "stays: the syncer has just been started" in degraded(w)[2]


@pytest.mark.parametrize(
    ("modes", "why"),
    [
        (("ReadWriteOnce",), "it mounts claim corpus with ReadWriteOnce"),
        (("ReadWriteOncePod",), "it mounts claim corpus with ReadWriteOncePod"),
        (("ReadOnlyMany", "ReadWriteOnce"), "it mounts claim corpus with ReadWriteOnce"),
        (("ReadWriteSometimes",), "it mounts claim corpus with ReadWriteSometimes"),
        ((), "it mounts claim corpus, whose access modes are not known"),
        (None, "it mounts claim corpus, whose access modes are not known"),
        (("ReadWriteMany",), ""),
        (("ReadOnlyMany", "ReadWriteMany"), ""),
    ],
)
def test_a_claim_that_one_node_alone_may_use_keeps_the_pod(modes: tuple[str, ...] | None, why: str) -> None:
    w = training_world()
    mount(w, persistentVolumeClaim={"claimName": "corpus"})
    if modes is not None:
        w.claims["corpus"] = modes
    lost_learner(w)
    w.run(100)
    assert bool(w.forced) == (not why)
    if why:
        assert degraded(w) == ("True", "LostPodKept", f"{PREFIX}, and pod {VICTIM} stays: {why}")


def test_an_ephemeral_claim_is_found_by_the_name_kubernetes_gives_it() -> None:
    w = training_world()
    mount(w, ephemeral={})
    w.claims[f"{VICTIM}-data"] = ("ReadWriteOnce",)
    lost_learner(w)
    w.run(100)
    assert not w.forced
    assert f"it mounts claim {VICTIM}-data with ReadWriteOnce" in degraded(w)[2]


def test_a_pod_that_a_finalizer_keeps_is_not_deleted_again_and_again() -> None:
    w = training_world()
    w.pods.pods[VICTIM]["metadata"]["finalizers"] = ["example.com/keep"]
    lost_learner(w)
    w.run(100)
    assert not w.forced
    assert "its finalizer example.com/keep keeps it" in degraded(w)[2]


def test_a_missing_right_is_said_and_no_request_is_made() -> None:
    w = training_world()
    w.pods_forbidden = frozenset({""})
    lost_learner(w)
    w.run(100)
    assert not w.forced
    assert "the operator has no right to delete pods in this namespace" in degraded(w)[2]


def test_a_stranger_that_is_labelled_like_a_learner_is_left_alone() -> None:
    w = training_world()
    w.pods.pods[VICTIM]["metadata"]["ownerReferences"] = [{"uid": "theirs", "kind": "Job", "controller": True}]
    lost_learner(w)
    w.run(100)
    assert not w.forced


def test_the_pod_of_a_set_that_was_made_anew_frees_its_name() -> None:
    w = training_world()
    reference = {"uid": "an earlier one", "kind": "StatefulSet", "name": "demo--us-west-old", "controller": True}
    w.pods.pods[VICTIM]["metadata"]["ownerReferences"] = [reference]
    lost_learner(w)
    w.run(100)
    assert len(w.forced) == 1


def test_a_pod_that_was_scaled_away_from_a_lost_node_is_removed_too() -> None:
    w = training_world()
    w.pods.stuck.add(f"{OLD}2")
    w.scale(1, 2)
    w.run(120)
    assert [deletion.child.name for deletion in w.forced] == [f"{OLD}2"]
    assert degraded(w)[0] == "False"


def test_so_many_lost_pods_are_deleted_some_at_a_time() -> None:
    w = training_world()
    w.scale(1, MOST_AT_ONCE + 20)
    w.run(30)
    lost_learner(w, *(name for name in w.learner_pods() if name.startswith(OLD)))
    w.tick(120)
    plan = w.plan()
    assert len(plan.delete_pods) == MOST_AT_ONCE
    assert plan.again_in_seconds == 1.0
    w.run(30)
    assert len(w.forced) == len({one.uid for one in w.forced}) == MOST_AT_ONCE + 20
    assert w.status["learners"]["summary"] == f"{MOST_AT_ONCE + 21}/{MOST_AT_ONCE + 21}"


def test_a_job_that_suspends_removes_what_is_lost() -> None:
    w = training_world()
    w.pods.stuck.add(VICTIM)
    w.change(suspend=True)
    w.run(50)
    assert w.condition("Suspended")["reason"] == "Suspending"
    assert w.syncer_pods(), "it may still hand in its work"
    w.run(100)
    assert w.condition("Suspended")["status"] == "True"
    assert not w.pods.pods
    assert [deletion.reason for deletion in w.forced] == ["LostPodRemoved"]
    assert degraded(w)[0] == "False"


def test_once_the_syncer_is_gone_its_word_is_not_needed() -> None:
    w = training_world()
    w.pods.stuck.add(VICTIM)
    w.unreachable = "no answer within 3 s"
    w.change(suspend=True)
    w.run(82)
    assert not w.forced
    assert w.syncer_pods()
    w.run(60)
    assert not w.pods.pods
    assert [deletion.reason for deletion in w.forced] == ["LostPodRemoved"]


def test_a_waiting_job_is_suspended_beside_its_lost_pod() -> None:
    w = training_world(failurePolicy={"lostPods": {"action": "Wait"}})
    w.pods.stuck.add(VICTIM)
    w.change(suspend=True)
    w.run(200)
    assert w.condition("Suspended")["status"] == "True"
    assert list(w.pods.pods) == [VICTIM]
    assert degraded(w)[1] == "LostPodKept"
    w.pods.stuck.clear()
    w.run(60)
    assert degraded(w)[0] == "False"


def test_a_complete_job_removes_what_is_lost() -> None:
    w = training_world()
    w.pods.stuck.add(VICTIM)
    w.syncer.merged = w.syncer.budget
    w.run(200)
    assert w.status["phase"] == "Complete"
    assert not w.pods.pods
    assert [deletion.reason for deletion in w.forced] == ["LostPodRemoved"]
    assert degraded(w)[0] == "False"


def test_a_job_that_cannot_be_read_still_removes_what_is_lost() -> None:
    w = training_world()
    w.pods.stuck.add(VICTIM)
    w.change(suspend=True, training={"tokens": "many"})
    w.run(200)
    assert w.condition("Suspended")["status"] == "True"
    assert [deletion.reason for deletion in w.forced] == ["LostPodRemoved"]


@pytest.mark.parametrize(
    ("lost_pods", "replaces", "after_seconds"),
    [
        (None, True, 60),
        ({}, True, 60),
        ({"action": "Replace", "afterSeconds": 10}, True, 10),
        ({"action": "Wait"}, False, 60),
        ({"action": "Replace", "afterSeconds": "soon"}, False, 60),
        ({"action": "Replace", "afterSeconds": True}, False, 60),
        ({"action": "Replace", "afterSeconds": -1}, False, 60),
        ({"action": ["Replace"]}, False, 60),
        ("Replace", False, 60),
    ],
)
def test_a_policy_that_cannot_be_read_deletes_nothing(lost_pods: Any, replaces: bool, after_seconds: int) -> None:
    found = policy_of({"spec": {"failurePolicy": {"lostPods": lost_pods}}})
    assert (found.replaces, found.after_seconds) == (replaces, after_seconds)


@pytest.mark.parametrize("job", [{}, {"spec": None}, {"spec": []}, {"spec": {"failurePolicy": "none"}}])
def test_a_job_that_says_nothing_has_the_defaults(job: Any) -> None:
    assert policy_of(job) == policy_of({"spec": {"failurePolicy": {"lostPods": {}}}})
