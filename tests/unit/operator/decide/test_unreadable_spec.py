"""A job can be stopped even if this version cannot read its spec or build its objects."""

import pytest

from testbed.virtual_cluster.operator_world import World, job_object


def unreadable(kind: str) -> World:
    """A job that trains, and whose spec has become unreadable."""
    w = World(job=job_object(tokens=10_000_000))
    w.run(60)
    assert w.status["phase"] == "Training"
    if kind == "something in the way of ours":
        w.job["spec"]["regions"][0]["pools"][0]["env"] = [{"name": "HOME", "value": "/"}]
    else:
        w.job["spec"]["sharding"] = {"ways": 4}
    w.change()
    w.run(10)
    assert w.status["phase"] in ("Invalid", "Training")
    assert len(w.pods.pods) == 5, "what runs is left as it is"
    return w


KINDS = ("a later version", "something in the way of ours")


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_cannot_be_read_is_suspended_learners_first(kind: str) -> None:
    w = unreadable(kind)
    w.change(suspend=True)
    w.run(5)
    assert w.condition("Suspended")["reason"] == "Suspending"
    assert w.syncer_pods()
    w.run(90)
    assert not w.pods.pods
    assert w.status["phase"] == "Suspended"
    assert w.condition("Degraded")["reason"] == "InvalidSpec"
    assert w.status["learners"]["desired"] == 0
    assert "startTime" not in w.status


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_that_cannot_be_read_ends_at_its_deadline(kind: str) -> None:
    w = unreadable(kind)
    w.change(activeDeadlineSeconds=80)
    w.run(120)
    assert (w.status["phase"], w.status["reason"]) == ("Failed", "DeadlineExceeded")
    assert not w.pods.pods


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_job_that_cannot_be_read_goes_when_its_time_is_over(kind: str) -> None:
    w = unreadable(kind)
    w.change(activeDeadlineSeconds=80, ttlSecondsAfterFinished=300)
    w.run(200)
    assert not w.job_deleted
    w.run(300)
    assert w.job_deleted


def test_a_deadline_that_is_no_number_is_none() -> None:
    w = unreadable("a later version")
    w.change(activeDeadlineSeconds="soon", suspend="yes")
    w.run(60)
    assert w.status["phase"] == "Invalid"
    assert len(w.pods.pods) == 5
