"""A job can be stopped, ends and loses nodes even if this version cannot read its spec or build its objects."""

from typing import Any

import pytest

from diloco_operator.decide.learners.lost_pods import SYNCER_STOPPED
from testbed.virtual_cluster.operator_world import World, job_object
from tests.unit.operator.decide.training_world import OLD, degraded, lose

VICTIM = f"{OLD}1"
LOST = "1 of 3 learners of us-west/old lost: node-1 does not respond"


def unreadable(kind: str, **spec: Any) -> World:
    """A job that trains, and whose spec has become unreadable."""
    w = World(job=job_object(tokens=10_000_000, **spec))
    w.run(60)
    assert w.status["phase"] == "Training"
    if kind == "something in the way of ours":
        w.job["spec"]["regions"][0]["pools"][0]["env"] = [{"name": "HOME", "value": "/"}]
    elif kind == "a quorum that cannot be":
        w.job["spec"]["sync"] = {"quorum": 50}
    elif kind == "a later version":
        w.job["spec"]["sharding"] = {"ways": 4}
    w.change()
    w.run(10)
    assert w.status["phase"] in ("Invalid", "Training")
    assert len(w.pods.pods) == 5, "what runs is left as it is"
    return w


KINDS = ("a later version", "something in the way of ours", "a quorum that cannot be")


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_cannot_be_read_is_suspended_learners_first(kind: str) -> None:
    w = unreadable(kind)
    w.change(suspend=True)
    w.run(5)
    assert w.condition("Suspended")["reason"] == "Suspending"
    assert w.pods_of("syncer")
    w.run(90)
    assert not w.pods.pods
    assert w.status["phase"] == "Suspended"
    assert w.condition("Degraded")["reason"] == "InvalidSpec"
    assert w.status["learners"]["desired"] == 0
    assert "startTime" not in w.status


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_cannot_be_read_ends_at_its_deadline_and_goes_in_time(kind: str) -> None:
    w = unreadable(kind)
    w.change(activeDeadlineSeconds=80, ttlSecondsAfterFinished=300)
    w.run(120)
    assert (w.status["phase"], w.status["reason"]) == ("Failed", "DeadlineExceeded")
    assert not w.pods.pods
    w.run(80)
    assert not w.job_deleted
    w.run(300)
    assert w.job_deleted


def test_a_deadline_that_is_no_number_is_none() -> None:
    w = unreadable("a later version")
    w.change(activeDeadlineSeconds="soon", suspend="yes")
    w.run(60)
    assert w.status["phase"] == "Invalid"
    assert len(w.pods.pods) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_learner_is_replaced_while_the_job_cannot_be_read(kind: str) -> None:
    w = unreadable(kind)
    uid = lose(w, VICTIM)
    w.run(75)
    assert not w.forced, "its time is not over: 20 s of grace and 60 s"
    w.run(20)
    assert [(one.uid, one.reason) for one in w.forced] == [(uid, "LostPodDeleted")]
    assert "NodeLost" not in [event.reason for event in w.events], "the manifest is what has to be mended first"
    w.run(30)
    assert len(w.syncer.joined) == 4
    assert degraded(w)[1] == "InvalidSpec"
    assert "lost" not in degraded(w)[2]
    assert len(w.forced) == 1


def test_what_is_wrong_besides_the_spec_is_said_after_it() -> None:
    w = unreadable("a later version", failurePolicy={"lostPods": {"action": "Wait"}})
    lose(w, VICTIM)
    w.run(120)
    assert not w.forced
    status, reason, message = degraded(w)
    assert (status, reason) == ("True", "InvalidSpec")
    assert message.startswith("spec.sharding: ")
    assert message.endswith(f"{LOST}, and pod {VICTIM} stays: spec.failurePolicy.lostPods.action is not Replace")
    assert w.condition("Ready")["reason"] == w.status["reason"] == "InvalidSpec"


def test_a_lost_syncer_is_released_although_the_spec_cannot_be_read() -> None:
    w = unreadable("a later version")
    (name,) = w.pods_of("syncer")
    uid = lose(w, name)
    w.pods.troubles["demo-syncer"] = {"phase": "Pending"}
    w.run(120)
    assert not w.forced
    assert SYNCER_STOPPED in degraded(w)[2]
    w.job["metadata"]["annotations"] = {SYNCER_STOPPED: uid}
    w.pods.troubles.clear()
    w.run(60)
    assert [one.reason for one in w.forced] == ["LostPodDeleted"]
    assert len(w.syncer.joined) == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suspend", [False, True])
def test_a_complete_job_ends_although_its_spec_cannot_be_read(kind: str, suspend: bool) -> None:
    w = unreadable(kind)
    w.syncer.merged = float(w.syncer.budget)
    w.syncer.export_blocked = True
    w.run(30)
    assert w.status["phase"] == "Invalid", "its model is not exported yet"
    w.syncer.export_blocked = False
    w.tick()
    w.change(suspend=suspend)
    w.run(90)
    assert (w.status["phase"], w.status["reason"]) == ("Complete", "BudgetReached")
    assert w.status["model"] == {"persistentVolumeClaim": "demo-syncer", "path": "model.safetensors"}
    assert w.status["progress"]["percent"] == "100%"
    assert w.status["completionTime"]
    assert not w.pods.pods


@pytest.mark.parametrize("kind", [*KINDS, "as it was"])
def test_a_failed_training_ends_a_job_with_its_reason_readable_or_not(kind: str) -> None:
    w = unreadable(kind)
    w.syncer.fails("too few learners are left")
    w.run(90)
    assert (w.status["phase"], w.status["reason"]) == ("Failed", "TrainingFailed")
    assert w.condition("Failed")["message"] == "too few learners are left"
    assert "model" not in w.status
    assert not w.pods.pods


def test_who_is_given_up_meanwhile_is_in_the_status_and_its_lost_pod_goes() -> None:
    w = unreadable("a later version")
    w.syncer.given_up = {"us-west/old/1"}
    w.run(10)
    (pool,) = w.status["regions"][1]["pools"]
    assert (pool["givenUp"], pool["desired"]) == ([1], 3)
    lose(w, VICTIM)
    w.run(95)
    assert [one.child.name for one in w.forced] == [VICTIM]


def test_a_job_that_never_ran_is_not_asked_about_all_the_time() -> None:
    w = World(job=job_object(sharding={"ways": 4}))
    w.reconcile()
    assert w.again_in_seconds == w.options.resync_seconds
