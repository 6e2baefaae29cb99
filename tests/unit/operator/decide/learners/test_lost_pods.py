"""Pods on nodes that do not respond, in a virtual cluster: which are deleted by force, and why the others stay.

The syncer's can be released only by a person.
"""

from collections.abc import Callable
from typing import Any

import pytest

from diloco_operator.decide.ending.stopping import policy_of
from diloco_operator.decide.learners.lost_pods import MOST_AT_ONCE, SYNCER_STOPPED
from testbed.virtual_cluster.operator_world import World
from testbed.virtual_cluster.world_pods import SILENT, running
from tests.unit.operator.decide.training_world import OLD, degraded, lose, training_world

VICTIM = f"{OLD}1"
PREFIX = "1 of 3 learners of us-west/old lost: node-1 does not respond"


def mount(w: World, **volume: Any) -> None:
    w.pods.pods[VICTIM]["spec"]["volumes"] = [{"name": "data", **volume}]


def test_the_time_is_the_manifests_and_may_change_meanwhile() -> None:
    w = training_world(failurePolicy={"lostPods": {"afterSeconds": 600}})
    lose(w, VICTIM)
    w.run(300, every=20.0)
    assert not w.forced
    assert degraded(w)[0] == "False"
    w.change(failurePolicy={"lostPods": {"afterSeconds": 30}})
    w.run(10)
    assert len(w.forced) == 1


def test_it_is_looked_at_again_when_the_time_is_over() -> None:
    w = training_world(failurePolicy={"lostPods": {"afterSeconds": 10}})
    lose(w, VICTIM)
    w.tick(28)
    w.reconcile()
    assert w.again_in_seconds == pytest.approx(2.0, abs=1.0)


@pytest.mark.parametrize(
    ("heard", "unreachable", "why"),
    [
        ({VICTIM}, "", "the syncer still hears from the learner"),
        (set(), "no answer within 3 s", "the syncer does not answer"),
    ],
)
def test_without_the_syncers_word_no_pod_is_deleted(heard: set[str], unreachable: str, why: str) -> None:
    w = training_world()
    lose(w, VICTIM)
    w.still_heard, w.unreachable = heard, unreachable
    w.run(150)
    assert not w.forced
    assert f"stays: {why}" in degraded(w)[2]
    w.still_heard, w.unreachable = set(), ""
    w.run(15)
    assert len(w.forced) == 1


def test_a_syncer_that_has_just_started_is_not_believed_yet() -> None:
    w = training_world()
    lose(w, VICTIM)
    w.tick(120)
    for condition in w.home.objects["Deployment", "demo-syncer"]["status"]["conditions"]:
        condition["lastTransitionTime"] = w.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    w.reconcile()
    assert not w.forced
    assert "stays: the syncer has just been started" in degraded(w)[2]


def claims(*modes: str) -> Callable[[World], None]:
    def change(w: World) -> None:
        mount(w, persistentVolumeClaim={"claimName": "corpus"})
        w.claims["corpus"] = modes

    return change


def has_an_ephemeral_claim(w: World) -> None:
    mount(w, ephemeral={})
    w.claims[f"{VICTIM}-data"] = ("ReadWriteOnce",)


def with_metadata(**metadata: Any) -> Callable[[World], None]:
    return lambda w: w.pods.pods[VICTIM]["metadata"].update(metadata)


WAIT = {"failurePolicy": {"lostPods": {"action": "Wait"}}}
EARLIER = {"uid": "an earlier one", "kind": "StatefulSet", "name": "demo--us-west-old", "controller": True}
STAYS: dict[str, tuple[Callable[[World], None], str]] = {
    "by the manifest": (lambda w: w.change(**WAIT), "spec.failurePolicy.lostPods.action is not Replace"),
    "once": (claims("ReadWriteOnce"), "it mounts claim corpus with ReadWriteOnce"),
    "once by one pod": (claims("ReadWriteOncePod"), "it mounts claim corpus with ReadWriteOncePod"),
    "once or read": (claims("ReadOnlyMany", "ReadWriteOnce"), "it mounts claim corpus with ReadWriteOnce"),
    "a later mode": (claims("ReadWriteSometimes"), "it mounts claim corpus with ReadWriteSometimes"),
    "no mode": (claims(), "it mounts claim corpus, whose access modes are not known"),
    "no claim": (
        lambda w: mount(w, persistentVolumeClaim={"claimName": "corpus"}),
        "it mounts claim corpus, whose access modes are not known",
    ),
    "ephemeral": (has_an_ephemeral_claim, f"it mounts claim {VICTIM}-data with ReadWriteOnce"),
    "a finalizer": (with_metadata(finalizers=["example.com/keep"]), "its finalizer example.com/keep keeps it"),
    "shared": (claims("ReadWriteMany"), ""),
    "shared or read": (claims("ReadOnlyMany", "ReadWriteMany"), ""),
    "its set was made anew": (with_metadata(ownerReferences=[EARLIER]), ""),
}


@pytest.mark.parametrize("case", STAYS)
def test_a_lost_pod_stays_for_a_reason_that_is_told(case: str) -> None:
    change, why = STAYS[case]
    w = training_world()
    change(w)
    lose(w, VICTIM)
    w.run(100)
    assert bool(w.forced) == (not why)
    if why:
        assert degraded(w) == ("True", "LostPodKept", f"{PREFIX}, and pod {VICTIM} stays: {why}")


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
    for name in w.pods_of("learner"):
        if name.startswith(OLD):
            lose(w, name)
    w.tick(120)
    plan = w.plan()
    assert len(plan.delete_pods) == MOST_AT_ONCE
    assert plan.again_in_seconds == 1.0
    w.run(30)
    assert len(w.forced) == len({one.uid for one in w.forced}) == MOST_AT_ONCE + 20
    assert w.status["learners"]["summary"] == f"{MOST_AT_ONCE + 21}/{MOST_AT_ONCE + 21}"


@pytest.mark.parametrize(("unreachable", "seconds"), [("", 50), ("no answer within 3 s", 82)])
def test_a_job_that_suspends_removes_what_is_lost(unreachable: str, seconds: float) -> None:
    w = training_world()
    w.pods.stuck.add(VICTIM)
    w.unreachable = unreachable
    w.change(suspend=True)
    w.run(seconds)
    assert w.condition("Suspended")["reason"] == "Suspending"
    assert not w.forced
    assert w.pods_of("syncer"), "it may still hand in its work"
    w.run(100)
    assert w.condition("Suspended")["status"] == "True"
    assert not w.pods.pods, "once the syncer is gone its word is not needed"
    assert [deletion.reason for deletion in w.forced] == ["LostPodDeleted"]
    assert degraded(w)[0] == "False"


def test_a_waiting_job_is_suspended_beside_its_lost_pod() -> None:
    w = training_world(**WAIT)
    w.pods.stuck.add(VICTIM)
    w.change(suspend=True)
    w.run(200)
    assert w.condition("Suspended")["status"] == "True"
    assert list(w.pods.pods) == [VICTIM]
    assert degraded(w)[1] == "LostPodKept"
    w.pods.stuck.clear()
    w.run(60)
    assert degraded(w)[0] == "False"


@pytest.mark.parametrize("suspend", [False, True])
def test_the_syncers_pod_stays_until_a_person_names_it(suspend: bool) -> None:
    w = training_world()
    (name,) = w.pods_of("syncer")
    uid = lose(w, name)
    w.pods.troubles["demo-syncer"] = {"phase": "Pending"}
    w.change(suspend=suspend)
    w.run(400, every=20.0)
    assert name in w.pods.pods
    status, reason, message = degraded(w)
    assert (status, reason) == ("True", "SyncerNodeLost")
    assert f"node-1 does not respond, so the syncer's pod {name} stays" in message
    for way in ("node.kubernetes.io/out-of-service=nodeshutdown:NoExecute", "delete the Node object", uid):
        assert way in message
    w.job["metadata"]["annotations"] = {SYNCER_STOPPED: "another-uid"}
    w.run(20)
    assert "that annotation is another-uid at present, which is not the uid of this pod" in degraded(w)[2]
    assert name in w.pods.pods
    w.job["metadata"]["annotations"] = {SYNCER_STOPPED: uid}
    w.pods.troubles.clear()
    w.run(60)
    assert name not in w.pods.pods
    assert [deletion.reason for deletion in w.forced if deletion.uid == uid] == ["LostPodDeleted"]
    assert w.status["phase"] == ("Suspended" if suspend else "Training")
    w.run(60)
    assert degraded(w)[0] == "False"


def test_the_syncers_silent_node_is_named_before_its_pod_is_to_end() -> None:
    w = training_world()
    (name,) = w.pods_of("syncer")
    uid = w.pods.pods[name]["metadata"]["uid"]
    w.pods.troubles[name] = running(w.now) | {"conditions": SILENT}
    w.run(10)
    status, reason, message = degraded(w)
    assert (status, reason) == ("True", "SyncerNodeLost")
    assert f"node-1 does not respond, so the syncer's pod {name} stays" in message
    why = "the syncer does not answer: its node node-1 does not respond"
    assert w.condition("Ready")["message"].startswith(why)
    w.job["metadata"]["annotations"] = {SYNCER_STOPPED: uid}
    w.run(10)
    assert name in w.pods.pods, "Kubernetes has not given it up"
    assert "annotation has no effect" not in degraded(w)[2]
    lose(w, name)
    w.run(10)
    assert [deletion.uid for deletion in w.forced] == [uid]


def test_a_readiness_gate_that_is_not_met_is_no_silent_node() -> None:
    w = training_world()
    (name,) = w.pods_of("syncer")
    conditions = [SILENT[0] | {"reason": "ReadinessGatesNotReady"}, SILENT[1]]
    w.pods.troubles[name] = running(w.now) | {"conditions": conditions}
    w.run(10)
    assert degraded(w)[1] == "SyncerUnreachable"


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
