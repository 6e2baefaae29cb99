"""When a job gives quota back to Kueue: only once no pod uses it, and whatever else is wrong then."""

from typing import Any

import pytest

from diloco_operator.api_server.errors import ApiError, Call, of_status
from diloco_operator.api_server.kinds import Kind
from testbed.virtual_cluster.world_pods import Object
from tests.unit.operator.jobs.test_queue import ALL, EAST, FIRST, LAST, MIDDLE, WEST, Scene, training


def pods_when_free(scene: Scene) -> list[str]:
    """Names of the pods that are left when no quota is taken any more."""
    for _ in range(100):
        scene.w.run(2, 2)
        if scene.q.used == 0:
            return sorted(scene.w.pods.pods)
    raise AssertionError(scene.q.workloads.keys())


def evicted() -> Scene:
    scene = training()
    scene.q.evict(FIRST)
    return scene


def complete() -> Scene:
    scene = training()
    scene.w.change(training={"tokens": 20_000, "sequenceLength": 16, "batchSize": 2})
    scene.w.syncers["demo"].budget = 20_000
    return scene


def suspended(**more: Any) -> Scene:
    scene = training()
    scene.w.change(suspend=True, **more)
    return scene


@pytest.mark.parametrize("scene", [evicted, complete, suspended, lambda: suspended(sync={"quorum": 99})])
def test_quota_is_free_only_when_the_last_pod_has_ended(scene: Any) -> None:
    assert pods_when_free(scene()) == []


def test_while_pods_cannot_be_listed_no_quota_is_given_back() -> None:
    scene = evicted()

    def failing(verb: str, kind: str, name: str, body: Object) -> ApiError | None:
        del body
        return of_status(Call("list", kind, "", name), 503, {}) if (verb, kind) == ("list", "Pod") else None

    scene.w.api.failing = failing
    scene.w.run(200)
    assert (scene.w.pods.pods, scene.q.used) == ({}, 5)
    scene.w.api.failing = lambda *_: None
    assert pods_when_free(scene) == []


def test_a_smaller_pool_gives_back_what_its_learners_had() -> None:
    scene = training()
    scene.w.change_pool(region=1, learners=2)
    scene.run(10)
    assert LAST in scene.q.workloads, "its pod may still hand in work"
    scene.run(90)
    assert scene.q.workloads.keys() == {FIRST, f"{WEST}-0", MIDDLE}
    assert scene.q.used == 4


def test_a_removed_pool_gives_back_all_once_its_pods_have_ended() -> None:
    scene = training()
    scene.w.change(regions=scene.w.job()["spec"]["regions"][:1])
    for _ in range(60):
        scene.w.run(2, 2)
        gone = {f"{WEST}-0", MIDDLE, LAST} - scene.q.workloads.keys()
        assert not gone or not [pod for pod in scene.w.pods.pods if pod.startswith(WEST)]
    assert scene.q.workloads.keys() == {FIRST}
    assert f"{EAST}-0" in scene.pods()


def requested(pods: Object) -> str:
    container = pods["spec"]["template"]["spec"]["containers"][0]
    return str(container.get("resources", {}).get("requests", {}).get("memory"))


@pytest.mark.parametrize("regions", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("seconds", [5, 30])
def test_pods_with_other_resources_never_run_on_the_quota_of_the_last_ones(regions: Any, seconds: int) -> None:
    scene = training()
    scene.w.change(suspend=True)
    scene.run(seconds)
    for region in regions:
        scene.w.change_pool(region=region, resources={"requests": {"memory": "64Gi"}})
    scene.w.change(suspend=False)
    for _ in range(90):
        scene.q.schedule()
        scene.w.run(2, 2)
        workloads = scene.q.workloads
        sets = [(name, each) for name in scene.q.admitted for each in workloads[name]["spec"]["podSets"]]
        given = {each["name"] if name == FIRST else name: requested({"spec": each}) for name, each in sets}
        for name, pod in scene.pods().items():
            own = name.rpartition("-")[0]
            if own in (EAST, WEST) and "deletionTimestamp" not in pod["metadata"]:
                assert given.get(name, given.get(own)) == requested(scene.w.home.of_kind("StatefulSet")[own])
    assert scene.w.status()["phase"] == "Training"
    assert len(scene.learners()) == 4
    changed = [requested(scene.w.home.of_kind("StatefulSet")[own]) == "64Gi" for own in (EAST, WEST)]
    assert changed == [region in regions for region in (0, 1)]


def test_a_job_that_is_resumed_at_once_without_a_change_keeps_its_quota() -> None:
    scene = training()
    before = {name: one["metadata"]["uid"] for name, one in scene.q.workloads.items()}
    scene.w.change(suspend=True)
    scene.run(5)
    scene.w.change(suspend=False)
    scene.run(120)
    assert {name: one["metadata"]["uid"] for name, one in scene.q.workloads.items()} == before
    assert len(scene.learners()) == 4


def test_a_failing_read_of_the_flavor_stops_nothing() -> None:
    scene = training()
    before, reading = scene.uids(), scene.w.api.get

    async def get(kind: Kind, namespace: str | None, name: str) -> Object:
        if kind.name == "ResourceFlavor":
            raise of_status(Call("get", kind.resource, "", name), 503, {"message": "conversion webhook failed"})
        return await reading(kind, namespace, name)

    scene.w.api.get = get  # type: ignore[method-assign]
    scene.run(90)
    assert scene.w.reconcile() is None
    assert scene.uids() == before
    assert scene.w.condition("Degraded")["status"] == "False", "what was read before is used"
    scene.w.change(suspend=True)
    assert pods_when_free(scene) == []


def test_a_set_that_kueue_queues_too_is_told() -> None:
    scene = training()
    live = scene.w.home.of_kind("StatefulSet")[WEST]
    labels = {**live["metadata"]["labels"], "kueue.x-k8s.io/queue-name": "default"}
    scene.w.home.put({**live, "metadata": {**live["metadata"], "labels": labels}})
    scene.run(10)
    found = scene.w.condition("Degraded")
    assert found["reason"] == "QueueUnusable"
    assert f"StatefulSet {WEST} too" in found["message"]


@pytest.mark.parametrize(("workload", "back"), [(MIDDLE, {MIDDLE}), (FIRST, {f"{EAST}-0", f"{WEST}-0", MIDDLE, LAST})])
def test_a_workload_deleted_by_hand_is_made_anew_and_its_learners_return(workload: str, back: set[str]) -> None:
    scene = training()
    before = scene.uids()
    scene.w.home.delete("Workload", workload)
    scene.run(150)
    assert len(scene.learners()) == 4
    assert {name for name, uid in scene.uids().items() if before[name] != uid} == back


def test_a_learner_taken_back_in_takes_its_place_in_the_first_workload() -> None:
    scene = training(sync={"quorum": 2})
    assert scene.q.workloads.keys() == {FIRST, MIDDLE, LAST}
    scene.w.change_pool(region=1, excludedIndices=[0])
    scene.run(60)
    before = scene.uids()
    assert scene.q.workloads.keys() == {FIRST, LAST}, "the next one has its quota there"
    scene.w.change_pool(region=1, excludedIndices=[])
    scene.run(90)
    assert scene.q.workloads.keys() == {FIRST, MIDDLE, LAST}
    assert len(scene.learners()) == 4
    assert {name for name, uid in before.items() if scene.uids()[name] != uid} == {MIDDLE}, "it has waited for quota"


def test_the_first_workload_has_its_quota_before_all_others_have_theirs() -> None:
    scene = Scene(quota=5)
    for _ in range(10):
        for _ in range(3):  # operator and Kueue are fast: what can follow does so in the same second
            scene.w.reconcile()
            scene.q.schedule()
        scene.w.run(1, 1)
    found = [(name, one) for name, work in scene.q.workloads.items() for one in work["status"]["conditions"]]
    since = {name: one["lastTransitionTime"] for name, one in found if one["type"] == "QuotaReserved"}
    first = since.pop(FIRST)
    assert since.keys() == ALL - {FIRST}
    assert min(since.values()) > first, "by whole seconds, Kueue takes quota back from the others first"
