"""Jobs with a queue while there is no Kueue: what runs, runs on, and a job can still end and be stopped."""

import pytest

from diloco_operator.api_server.errors import ApiError, Call, of_status
from testbed.virtual_cluster.world_pods import Object
from tests.unit.operator.jobs.test_queue import ALL, FIRST, MIDDLE, training

MISSING = "spec.queue: the cluster has no Kueue"


def test_a_job_is_left_as_it_is_and_says_why_until_kueue_is_back() -> None:
    scene = training()
    before, step = scene.uids(), scene.w.status()["progress"]["step"]
    scene.w.missing_kueue = MISSING
    scene.w.api.writes.clear()
    scene.run(60)
    assert {kind for _, kind, _ in scene.w.api.writes} <= {"DiLoCoJob", "Event"}
    told = scene.w.condition("Degraded")
    assert (told["status"], told["reason"], told["message"]) == ("True", "QueueUnusable", MISSING)
    assert (scene.uids(), len(scene.learners())) == (before, 4)
    assert scene.w.status()["progress"]["step"] > step
    scene.w.missing_kueue = ""
    scene.run(30)
    assert (scene.w.status()["phase"], scene.uids()) == ("Training", before)
    assert scene.w.condition("Degraded")["status"] == "False"


def test_a_job_whose_training_ends_meanwhile_is_complete_and_leaves_no_pod() -> None:
    scene = training()
    tokens = scene.w.status()["progress"]["tokens"] + 20_000
    scene.w.change(training={"tokens": tokens, "sequenceLength": 16, "batchSize": 2})
    scene.w.syncers["demo"].budget = tokens
    scene.run(5)
    scene.w.missing_kueue = MISSING
    scene.run(5)
    assert scene.w.condition("Ready")["reason"] == "QueueUnusable"
    scene.run(400)
    assert scene.w.status()["phase"] == "Complete"
    assert scene.w.pods.pods == {}


def test_a_job_is_suspended_meanwhile_and_starts_only_once_kueue_is_back() -> None:
    scene = training()
    scene.w.missing_kueue = MISSING
    scene.run(10)
    scene.w.change(suspend=True)
    scene.run(120)
    assert (scene.w.condition("Suspended")["status"], scene.w.pods.pods) == ("True", {})
    scene.w.change(suspend=False)
    scene.run(60)
    assert scene.w.pods.pods == {}
    assert scene.w.condition("Ready")["reason"] == "QueueUnusable"
    scene.w.missing_kueue = ""
    scene.run(120)
    assert len(scene.learners()) == 4


@pytest.mark.parametrize("deleted", [ALL, {FIRST}, {MIDDLE}])
@pytest.mark.parametrize("seconds", [5, 60])
def test_nothing_stops_when_workloads_go_with_kueues_definitions(deleted: set[str], seconds: int) -> None:
    scene = training()
    before = scene.uids()

    def failing(verb: str, kind: str, name: str, body: Object) -> ApiError | None:
        del body
        writes = kind == "Workload" and verb in ("create", "apply", "patch")
        return of_status(Call(verb, kind, "", name), 405, {}) if writes else None

    scene.w.api.failing = failing
    for name in sorted(deleted):
        scene.w.home.delete("Workload", name)
    scene.w.run(seconds)
    scene.w.missing_kueue = MISSING
    scene.w.run(120)
    assert (scene.uids(), len(scene.learners())) == (before, 4)
