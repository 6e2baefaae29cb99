"""A training whose volume is gone starts from zero only if an annotation says so."""

import pytest

from testbed.virtual_cluster.cluster_world import ClusterWorld

CLAIM = ("PersistentVolumeClaim", "demo-syncer")


def training() -> ClusterWorld:
    world = ClusterWorld()
    world.run(60)
    assert world.status()["syncer"]["claimUid"] == uid(world)
    return world


def uid(world: ClusterWorld) -> str:
    return str(world.api.objects[CLAIM]["metadata"]["uid"])


def lose(world: ClusterWorld) -> None:
    """Delete the claim, and the syncer's pod, which used it."""
    del world.api.objects[CLAIM]
    world.api.applied.pop(CLAIM, None)
    for pod in world.pods_of("syncer"):
        del world.api.pods.pods[pod]


def test_a_deleted_claim_is_told_and_no_syncer_is_started_on_a_new_one() -> None:
    w = training()
    old, epoch = uid(w), w.syncers["demo"].epoch
    lose(w)
    w.run(120)
    degraded = w.condition("Degraded")
    assert degraded["reason"] == "VolumeLost"
    assert degraded["message"].startswith(f"claim demo-syncer is gone: the training was on the one with uid {old};")
    assert w.condition("Ready")["status"] == "False"
    assert CLAIM not in w.api.objects
    assert w.syncers["demo"].epoch == epoch
    assert not w.pods_of("syncer")


@pytest.mark.parametrize("suspended", [False, True])
def test_a_claim_of_another_uid_is_not_taken_for_the_lost_one(*, suspended: bool) -> None:
    w = training()
    old, epoch = uid(w), w.syncers["demo"].epoch
    if suspended:
        w.change(suspend=True)
        w.run(90)
    claim = w.api.objects[CLAIM]
    lose(w)
    claim["metadata"] |= {"uid": "another"}
    w.api.objects[CLAIM] = claim
    w.run(10)
    assert w.condition("Degraded")["message"].startswith(
        f"claim demo-syncer has been replaced: the training was on the one with uid {old};"
    )
    w.change(suspend=False)
    w.run(60)
    assert w.syncers["demo"].epoch == epoch
    assert w.status()["syncer"]["claimUid"] == old


def test_told_to_start_anew_it_makes_a_new_claim_and_remembers_that_one() -> None:
    w = training()
    old, epoch = uid(w), w.syncers["demo"].epoch
    lose(w)
    w.run(30)
    w.annotate(start_anew=old)
    w.run(60)
    assert w.syncers["demo"].epoch == epoch + 1
    assert w.status()["phase"] == "Training"
    assert w.condition("Degraded")["status"] == "False"
    assert w.status()["syncer"]["claimUid"] == uid(w) != old
    lose(w)
    w.run(60)
    assert w.condition("Degraded")["reason"] == "VolumeLost", "it was said of the first loss only"


def test_a_claim_that_is_being_deleted_is_told_while_the_training_goes_on() -> None:
    w = training()
    w.api.objects[CLAIM]["metadata"] |= {"deletionTimestamp": "2026-01-02T03:05:00Z", "resourceVersion": "100000"}
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


def test_an_upgraded_operator_takes_the_claim_that_it_finds() -> None:
    w = training()
    del w.status()["syncer"]["claimUid"]
    w.new_operator()
    w.run(10)
    assert w.status()["syncer"]["claimUid"] == uid(w)
    assert w.condition("Degraded")["status"] == "False"


def without_uid(*, progress: bool = True) -> ClusterWorld:
    """A job whose status was written by an operator that did not record the claim's uid."""
    w = training()
    del w.status()["syncer"]["claimUid"]
    if not progress:
        w.status()["progress"] |= {"step": 0, "tokens": 0}
    w.new_operator()
    return w


def test_an_upgraded_operator_without_a_claim_starts_nothing_from_zero() -> None:
    w = without_uid()
    epoch = w.syncers["demo"].epoch
    lose(w)
    w.run(120)
    degraded = w.condition("Degraded")
    assert degraded["reason"] == "VolumeLost"
    assert degraded["message"].startswith(
        "claim demo-syncer is gone: the training was on it, and its uid is not recorded; "
        "to start from zero, annotate the job with diloco.dev/start-anew=unrecorded"
    )
    assert CLAIM not in w.api.objects
    assert w.syncers["demo"].epoch == epoch
    assert not w.pods_of("syncer")


def test_the_loss_of_a_claim_without_a_recorded_uid_can_be_accepted_once() -> None:
    w = without_uid()
    epoch = w.syncers["demo"].epoch
    lose(w)
    w.run(30)
    w.annotate(start_anew="unrecorded")
    w.run(60)
    assert w.syncers["demo"].epoch == epoch + 1
    assert w.status()["phase"] == "Training"
    assert w.condition("Degraded")["status"] == "False"
    assert w.status()["syncer"]["claimUid"] == uid(w)
    lose(w)
    w.run(60)
    assert w.condition("Degraded")["reason"] == "VolumeLost", "it was said of the first loss only"


def test_a_job_without_progress_and_without_a_recorded_uid_gets_a_claim() -> None:
    w = without_uid(progress=False)
    lose(w)
    w.run(60)
    assert w.status()["syncer"]["claimUid"] == uid(w)
    assert w.condition("Degraded")["status"] == "False"


def test_a_complete_job_without_uid_and_claim_says_its_model_is_gone() -> None:
    w = training()
    w.syncers["demo"].merged = w.syncers["demo"].budget
    w.run(90)
    assert w.status()["model"]
    del w.status()["syncer"]["claimUid"], w.status()["progress"]
    w.new_operator()
    lose(w)
    w.run(10)
    assert w.condition("Degraded")["reason"] == "VolumeLost"
    assert w.status()["phase"] == "Complete"
