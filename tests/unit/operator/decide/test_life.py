from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from testbed.virtual_cluster.namespace import START
from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import stamp

KINDS = {
    "ConfigMap": 1,
    "Deployment": 1,
    "NetworkPolicy": 2,
    "PersistentVolumeClaim": 1,
    "Secret": 4,
    "Service": 2,
    "StatefulSet": 2,
}


def world(seconds: float = 60.0, **spec: Any) -> World:
    made = World(job=job_object(**spec))
    made.run(seconds)
    return made


def test_a_job_is_applied_trains_and_completes_with_its_model_on_the_claim() -> None:
    w = World()
    w.reconcile()
    assert Counter(kind for kind, _ in w.home.objects) == KINDS
    assert (w.status["phase"], w.status["reason"]) == ("Pending", "WaitingForSyncer")
    w.run(60)
    assert (w.status["phase"], w.status["reason"]) == ("Training", "Training")
    assert w.status["startTime"] == stamp(START)
    assert w.status["learners"] == {"desired": 4, "ready": 4, "training": 4, "summary": "4/4"}
    assert w.condition("Ready")["message"] == "4 of 4 learners train"
    w.run(240)
    assert w.status["phase"] == "Complete"
    assert w.status["model"] == {"persistentVolumeClaim": "demo-syncer", "path": "model.safetensors"}
    assert w.status["progress"]["percent"] == "100%"
    assert w.status["progress"]["loss"] == "2.500"
    assert (w.condition("Ready")["status"], w.condition("Ready")["reason"]) == ("True", "BudgetReached")
    assert not w.pods.pods
    assert ("PersistentVolumeClaim", "demo-syncer") in w.home.objects
    assert [event.reason for event in w.events] == ["WaitingForSyncer", "Training", "BudgetReached"]


def test_a_job_says_whether_it_waits_for_its_syncer_or_for_learners() -> None:
    w = World()
    w.pods.room = 0
    w.run(60)
    ready = w.condition("Ready")
    assert (ready["reason"], ready["message"]) == ("WaitingForLearners", "0 of 4 learners train")
    told = [event.reason for event in w.events]
    assert told.index("WaitingForSyncer") < told.index("WaitingForLearners")


def test_the_end_is_recorded_before_anything_is_stopped() -> None:
    w = world()
    w.syncer.merged = w.syncer.budget
    w.tick()
    plan = w.reconcile()
    assert plan.status is not None
    assert (plan.apply, plan.again_in_seconds) == ((), 0.0)
    stopping = w.reconcile()
    assert {(one.child.kind, one.replicas) for one in stopping.scale} == {("StatefulSet", 0)}
    assert not stopping.apply


def test_a_finished_training_is_complete_only_once_its_model_is_exported() -> None:
    w = world()
    w.syncer.export_blocked = True
    w.run(300)
    assert w.status["phase"] == "Training"
    assert w.condition("Progressing")["reason"] == "Finishing"
    w.syncer.export_blocked = False
    w.run(10)
    assert w.status["phase"] == "Complete"


def test_a_steady_job_writes_its_progress_every_ten_seconds_at_most() -> None:
    w = world(60, tokens=10_000_000)
    before = w.status_writes
    w.run(100, every=1.0)
    assert w.status_writes - before <= 10
    assert w.home.writes == sum(KINDS.values())


def test_a_job_that_stands_still_writes_nothing_until_it_is_no_progress() -> None:
    w = world(60, tokens=10_000_000)
    w.syncer.frozen = True
    w.run(20)
    before = w.status_writes
    w.run(570, every=10.0)
    assert w.status_writes == before
    assert w.status["progress"]["tokensPerSecond"] == 0
    assert "secondsLeft" not in w.status["progress"]
    assert w.condition("Progressing")["status"] == "True"
    w.run(30)
    assert (w.condition("Progressing")["status"], w.condition("Progressing")["reason"]) == ("False", "NoProgress")
    w.syncer.frozen = False
    w.run(20)
    assert w.condition("Progressing")["status"] == "True"


def test_a_job_without_a_merge_says_what_merging_waits_for() -> None:
    w = world(tokens=10_000_000)
    w.syncer.frozen, w.syncer.merged = True, 0
    w.run(60)
    progressing = w.condition("Progressing")
    assert (progressing["status"], progressing["message"]) == ("True", "no merge yet: a learner has joined")
    w.syncer.frozen = False
    w.run(60)
    assert w.condition("Progressing")["message"] == "merges advance"


def test_a_syncer_back_after_a_long_absence_is_not_reported_as_no_progress() -> None:
    w = world(60, tokens=10_000_000)
    w.unreachable = "no answer within 3 s"
    w.run(1200, every=60.0)
    w.unreachable = ""
    w.syncer.frozen = True
    w.run(20)
    assert w.condition("Progressing")["reason"] == "Training"


def test_suspending_stops_learners_then_the_syncer_and_resuming_goes_on() -> None:
    w = world(60, tokens=10_000_000)
    w.change(suspend=True)
    w.run(5)
    assert not any(item["spec"]["replicas"] for item in w.home.of_kind("StatefulSet").values())
    assert w.home.objects["Deployment", "demo-syncer"]["spec"]["replicas"] == 1
    assert (w.condition("Suspended")["status"], w.condition("Suspended")["reason"]) == ("False", "Suspending")
    assert w.status["phase"] == "Suspending"
    w.run(60)
    assert not w.pods.pods
    assert (w.status["phase"], w.status["reason"]) == ("Suspended", "Suspended")
    assert w.condition("Suspended")["status"] == "True"
    assert "startTime" not in w.status
    assert w.status["learners"]["summary"] == "0/0"
    step = w.status["progress"]["step"]
    assert step > 0
    quiet = w.status_writes
    w.run(600, every=60.0)
    assert w.status_writes == quiet
    resumed_at = w.now
    w.change(suspend=False)
    w.run(60)
    assert w.status["phase"] == "Training"
    assert (w.condition("Suspended")["status"], w.condition("Suspended")["reason"]) == ("False", "Resumed")
    assert w.status["startTime"] == stamp(resumed_at)
    assert w.status["progress"]["step"] > step
    assert w.status["syncer"]["epoch"] == 2


def test_a_job_created_suspended_starts_no_pod() -> None:
    w = world(60, suspend=True)
    assert not w.pods.pods
    assert w.syncer.epoch == 0
    assert w.status["phase"] == "Suspended"


def test_the_deadline_fails_a_job_for_good_and_stops_it() -> None:
    w = world(50, activeDeadlineSeconds=60)
    assert w.again_in_seconds <= 10
    w.run(60)
    assert (w.status["phase"], w.status["reason"]) == ("Failed", "DeadlineExceeded")
    assert "activeDeadlineSeconds (60 s)" in w.condition("Failed")["message"]
    raise_budget(w, 100_000)
    w.run(60)
    assert (w.status["phase"], w.pods.pods) == ("Failed", {})


def test_the_deadline_stops_while_suspended_and_restarts_on_resuming() -> None:
    w = world(50, tokens=10_000_000, activeDeadlineSeconds=100)
    w.change(suspend=True)
    w.run(500, every=20.0)
    w.change(suspend=False)
    w.run(90)
    assert w.status["phase"] == "Training"
    w.run(60)
    assert w.status["reason"] == "DeadlineExceeded"


def test_a_finished_job_is_deleted_once_its_time_to_live_is_over() -> None:
    w = world(300, ttlSecondsAfterFinished=3600)
    assert w.status["phase"] == "Complete"
    w.now += timedelta(seconds=3000)
    w.reconcile()
    assert w.again_in_seconds <= 60
    before = w.job_deleted
    w.now += timedelta(seconds=700)
    plan = w.reconcile()
    assert (before, w.job_deleted) == (False, True)
    assert (plan.apply, plan.status) == ((), None)


def test_a_time_to_live_of_nothing_deletes_at_the_end() -> None:
    w = world(300, ttlSecondsAfterFinished=0)
    assert w.job_deleted


def test_a_finished_job_stays_finished_whatever_its_spec_says() -> None:
    w = world(300)
    for suspend in (True, False):
        w.change(suspend=suspend)
        w.run(60)
        assert w.status["phase"] == "Complete"
        assert not w.pods.pods
    assert w.status["observedGeneration"] == w.job["metadata"]["generation"]
    del w.home.objects["PersistentVolumeClaim", "demo-syncer"]
    w.run(60)
    assert ("PersistentVolumeClaim", "demo-syncer") not in w.home.objects, "an empty volume is no use to anybody"


def raise_budget(w: World, tokens: int) -> None:
    w.change(training=w.job["spec"]["training"] | {"tokens": tokens})


def test_a_budget_is_changed_while_the_job_trains_and_no_pod_is_replaced() -> None:
    w = world(60)
    before = {name: pod["metadata"]["uid"] for name, pod in w.pods.pods.items()}
    for tokens in (10_000_000, 80_000):
        raise_budget(w, tokens)
        w.run(10)
        assert w.status["progress"]["budgetTokens"] == tokens
    assert {name: pod["metadata"]["uid"] for name, pod in w.pods.pods.items()} == before
    w.run(200)
    assert w.status["phase"] == "Complete"
    assert w.status["progress"]["tokens"] == 80_000


def test_a_complete_job_goes_on_from_its_checkpoint_with_a_larger_budget() -> None:
    w = world(300, activeDeadlineSeconds=310, ttlSecondsAfterFinished=3600)
    assert w.status["phase"] == "Complete"
    w.run(600, every=60.0)
    raise_budget(w, 60_000)
    w.run(10)
    assert w.status["phase"] == "Complete", "nothing is left to do"
    raised_at = w.now
    raise_budget(w, 100_000)
    w.reconcile()
    assert (w.status["phase"], w.status["reason"]) == ("Pending", "Resumed")
    assert not {"startTime", "completionTime", "model"} & w.status.keys()
    told = "the job was complete with 60000 tokens merged, and spec.training.tokens was raised"
    assert [(event.reason, event.message) for event in w.events[-1:]] == [("Resumed", told)]
    w.run(60)
    assert w.status["phase"] == "Training"
    assert (w.condition("Complete")["status"], w.condition("Complete")["reason"]) == ("False", "Resumed")
    assert w.status["startTime"] == stamp(raised_at)
    assert (w.status["syncer"]["epoch"], w.status["progress"]["tokens"] > 60_000) == (2, True)
    w.run(200)
    assert (w.status["phase"], w.status["progress"]["tokens"]) == ("Complete", 100_000)
    assert w.status["model"] == {"persistentVolumeClaim": "demo-syncer", "path": "model.safetensors"}
    assert not w.pods.pods
    assert not w.job_deleted


@pytest.mark.parametrize("reads", [True, False])
def test_a_budget_raised_as_the_syncer_ends_the_job_is_no_end(*, reads: bool) -> None:
    w = world(60)
    w.syncer.export_blocked = True
    w.run(150)
    w.syncer.reads_orders = reads
    raise_budget(w, 100_000)
    w.syncer.export_blocked = False
    w.run(90)
    assert w.status["phase"] == "Training"
    assert w.condition("Progressing")["reason"] == ("Training" if reads else "Finishing")
    w.syncer.reads_orders = True
    w.run(200)
    assert (w.status["phase"], w.status["progress"]["tokens"]) == ("Complete", 100_000)


def test_a_budget_raised_before_a_complete_jobs_pods_are_gone_is_trained() -> None:
    w = world(60)
    while w.status["phase"] != "Complete":
        w.tick()
        w.reconcile()
    uids = {pod["metadata"]["uid"] for pod in w.pods.pods.values()}
    raise_budget(w, 100_000)
    w.run(10)
    assert (w.condition("Complete")["reason"], w.status["phase"]) == ("Resumed", "Training")
    assert {pod["metadata"]["uid"] for pod in w.pods.pods.values()} == uids
    w.run(250)
    assert (w.status["phase"], w.status["progress"]["tokens"]) == ("Complete", 100_000)


@pytest.mark.parametrize("refused", [{"activeDeadlineSeconds": "soon"}, {"syncer": {"env": [{"name": "DILOCO_POD"}]}}])
def test_a_refused_manifest_with_a_larger_budget_lets_the_job_end(refused: dict[str, Any]) -> None:
    w = world(60)
    w.change(**refused)
    raise_budget(w, 100_000)
    w.run(30)
    assert w.status["phase"] == "Invalid"
    w.run(200)
    assert (w.status["phase"], w.status["progress"]["tokens"]) == ("Complete", 60_000)
    assert not w.pods.pods


def test_a_suspended_job_whose_budget_is_raised_goes_on_once_it_is_resumed() -> None:
    w = world(300)
    w.change(suspend=True)
    raise_budget(w, 100_000)
    w.run(60)
    assert (w.status["phase"], w.pods.pods) == ("Suspended", {})
    w.change(suspend=False)
    w.run(60)
    assert w.status["phase"] == "Training"


def test_a_pool_is_scaled_up_and_down_while_the_job_trains() -> None:
    w = world(60, tokens=10_000_000)
    for learners in (3, 1, 0, 2):
        w.scale(0, learners)
        w.run(40)
        assert w.set_named("us-east/new")["spec"]["replicas"] == learners
        assert w.status["learners"]["summary"] == f"{3 + learners}/{3 + learners}"
        assert w.status["phase"] == "Training"


def test_deleted_children_come_back_and_nobody_else_is_touched() -> None:
    w = world(60, tokens=10_000_000)
    for key in (("Service", "demo-syncer"), ("Secret", "demo-syncer-tls")):
        before = w.home.writes
        del w.home.objects[key]
        w.reconcile()
        assert key in w.home.objects
        assert w.home.writes == before + 1


def test_restarts_are_the_syncers_count_and_are_kept_while_it_is_away() -> None:
    w = world(60, tokens=10_000_000)
    w.syncer.restarts = {"us-west/old/1": 2, "us-west/old/0": 1, "us-east/new/0": 2}
    w.run(5)
    told = [(one["learner"], one["count"]) for one in w.status["restarts"]]
    assert told == [("us-east/new/0", 2), ("us-west/old/1", 2), ("us-west/old/0", 1)]
    w.unreachable = "no answer within 3 s"
    w.run(20)
    assert [(one["learner"], one["count"]) for one in w.status["restarts"]] == told
