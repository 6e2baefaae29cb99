"""A training whose volume is gone starts from zero only if an annotation says so."""

import pytest

from testbed.virtual_cluster.cluster_world import ClusterWorld
from tests.unit.operator.jobs.training_cluster import training

CLAIM = ("PersistentVolumeClaim", "demo-syncer")


def uid(world: ClusterWorld) -> str:
    return str(world.home.objects[CLAIM]["metadata"]["uid"])


def lose(world: ClusterWorld) -> None:
    """Delete the claim, and the syncer's pod, which used it."""
    del world.home.objects[CLAIM]
    world.home.applied.pop(CLAIM, None)
    for pod in world.home.pods_of("syncer", "demo"):
        del world.pods.pods[pod]


def test_a_deleted_claim_is_told_and_only_by_order_a_new_one_is_begun() -> None:
    w = training()
    old, epoch = uid(w), w.syncers["demo"].epoch
    lose(w)
    w.run(120)
    degraded = w.condition("Degraded")
    assert degraded["reason"] == "VolumeLost"
    assert degraded["message"].startswith(f"claim demo-syncer is gone: the training was on the one with uid {old};")
    assert w.condition("Ready")["status"] == "False"
    assert CLAIM not in w.home.objects
    assert w.syncers["demo"].epoch == epoch
    assert not w.home.pods_of("syncer", "demo")
    w.annotate(start_anew=old)
    w.run(60)
    assert w.syncers["demo"].epoch == epoch + 1
    assert w.status()["phase"] == "Training"
    assert w.condition("Degraded")["status"] == "False"
    assert w.status()["syncer"]["claimUid"] == uid(w) != old
    lose(w)
    w.run(60)
    assert w.condition("Degraded")["reason"] == "VolumeLost", "it was said of the first loss only"


@pytest.mark.parametrize("suspended", [False, True])
def test_a_claim_of_another_uid_is_not_taken_for_the_lost_one(*, suspended: bool) -> None:
    w = training()
    old, epoch = uid(w), w.syncers["demo"].epoch
    if suspended:
        w.change(suspend=True)
        w.run(90)
    claim = w.home.objects[CLAIM]
    lose(w)
    claim["metadata"] |= {"uid": "another"}
    w.home.objects[CLAIM] = claim
    w.run(10)
    assert w.condition("Degraded")["message"].startswith(
        f"claim demo-syncer has been replaced: the training was on the one with uid {old};"
    )
    w.change(suspend=False)
    w.run(60)
    assert w.syncers["demo"].epoch == epoch
    assert w.status()["syncer"]["claimUid"] == old


def test_a_claim_that_is_being_deleted_is_told_while_the_training_goes_on() -> None:
    w = training()
    w.home.objects[CLAIM]["metadata"] |= {"deletionTimestamp": "2026-01-02T03:05:00Z", "resourceVersion": "100000"}
    w.run(10)
    assert w.condition("Degraded")["reason"] == "VolumeTerminating"
    assert w.condition("Ready")["status"] == "True"


def test_a_complete_job_whose_claim_is_gone_says_that_its_model_is() -> None:
    w = training()
    w.syncers["demo"].merged = w.syncers["demo"].budget
    w.run(90)
    assert w.status()["phase"] == "Complete"
    lose(w)
    w.run(10)
    assert w.condition("Degraded")["reason"] == "VolumeLost"
    assert w.status()["phase"] == "Complete"
    w.change(training=w.job()["spec"]["training"] | {"tokens": 10**12})
    w.run(60)
    assert (w.status()["phase"], w.condition("Degraded")["reason"]) == ("Pending", "VolumeLost")
    assert not w.home.pods_of("syncer", "demo")
