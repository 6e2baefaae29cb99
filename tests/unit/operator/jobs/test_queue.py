"""Jobs that wait for quota of Kueue, in a virtual cluster: quota comes and goes learner by learner."""

from typing import Any

import pytest

from diloco_operator.manifests.placement.holds import GATE
from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.operator_world import job_object
from testbed.virtual_cluster.world_pods import crashed
from testbed.virtual_cluster.world_queue import FLAVOR, FULL, NODES, TOLERATION, WorldQueue

EAST, WEST = "demo--us-east-new", "demo--us-west-old"
FIRST, MIDDLE, LAST = "demo-syncer", f"{WEST}-1", f"{WEST}-2"
ALL = {FIRST, f"{WEST}-0", MIDDLE, LAST}


class Scene:
    """A cluster whose operator asks Kueue."""

    def __init__(self, quota: int, **spec: Any) -> None:
        self.w = ClusterWorld(job_names=())
        self.q = WorldQueue(self.w.home, quota, {"high": 10})
        self.create("demo", **spec)

    def create(self, name: str, priority: str | None = None, **spec: Any) -> None:
        queue = {"name": "team", **({"priorityClass": priority} if priority else {})}
        self.w.create(job_object(name, tokens=10_000_000, queue=queue, **spec), number=len(self.w.syncers))

    def delete(self, name: str) -> None:
        """Delete a job with all that it owns, at once."""
        del self.w.syncers[name]
        for kind, own in list(self.w.home.objects):
            if own == name or own.startswith(f"{name}-"):
                self.w.home.delete(kind, own)
        for pod in [pod for pod in self.w.pods.pods if pod.startswith(f"{name}-")]:
            del self.w.pods.pods[pod]

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / 5)):
            self.q.schedule()
            self.w.run(5)

    def pods(self, job: str = "demo") -> dict[str, dict[str, Any]]:
        """Those that may run."""
        items = self.w.pods.pods.items()
        own = {name: pod for name, pod in items if pod["metadata"]["labels"]["diloco.dev/job"] == job}
        return {name: pod for name, pod in own.items() if not pod["spec"].get("schedulingGates")}

    def uids(self, job: str = "demo") -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods(job).items()}

    def learners(self, job: str = "demo") -> set[str]:
        return set(self.w.home.working_learners(job)) & self.w.syncers[job].joined

    def pool(self, region: int = 1) -> dict[str, Any]:
        found: dict[str, Any] = self.w.status()["regions"][region]["pools"][0]
        return found

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.w.api.events]


def training(quota: int = 5, **spec: Any) -> Scene:
    scene = Scene(quota, **spec)
    scene.run(90)
    assert scene.w.status()["phase"] == "Training"
    return scene


def test_until_the_first_workload_is_admitted_there_is_no_pod() -> None:
    scene = Scene(quota=1)
    scene.run(30)
    assert scene.q.workloads.keys() == {FIRST}
    sets = scene.q.workloads[FIRST]["spec"]["podSets"]
    assert [(one["name"], one["count"]) for one in sets] == [("syncer", 1), (EAST, 1)]
    assert scene.w.pods.pods == {}
    ready = scene.w.condition("Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "Queued", f"Workload {FIRST}: {FULL}")
    assert (scene.w.status()["phase"], scene.w.condition("Degraded")["status"]) == ("Pending", "False")
    assert "startTime" not in scene.w.status()
    scene.w.api.writes.clear()
    scene.run(60)
    assert scene.w.api.writes == []


def test_a_job_trains_with_what_it_has_and_grows_as_quota_frees() -> None:
    scene = training(quota=2)
    assert scene.learners() == {"us-east/new/0"}
    assert scene.q.workloads.keys() == ALL
    assert (scene.pool()["queued"], scene.pool()["message"]) == (
        3,
        f"3 of 3 learners of us-west/old wait for quota: us-west/old/0: {FULL}",
    )
    assert scene.w.condition("Degraded")["status"] == "False", "to wait is normal"
    before = scene.uids()
    scene.q.quota = 4
    scene.run(60)
    assert scene.learners() == {"us-east/new/0", "us-west/old/0", "us-west/old/1"}
    assert before.items() <= scene.uids().items(), "those that train are not touched"
    assert scene.pool()["queued"] == 1
    scene.q.quota = 5
    scene.run(60)
    assert len(scene.learners()) == 4
    assert "queued" not in scene.pool()
    assert "message" not in scene.pool()


def test_pods_run_where_the_flavor_says_and_kueue_is_told() -> None:
    scene = training()
    for name, pod in scene.pods().items():
        if not name.startswith(FIRST):
            assert pod["spec"]["nodeSelector"] == NODES
            assert TOLERATION in pod["spec"]["tolerations"]
            assert len(pod["spec"]["tolerations"]) == 3, "those of its template stay"
    of_syncer = scene.w.home.of_kind("Deployment")[FIRST]["spec"]["template"]["spec"]
    assert of_syncer["nodeSelector"] == NODES
    assert TOLERATION in of_syncer["tolerations"]
    assert all(scene.q.conditions(name)["PodsReady"] == "True" for name in ALL)
    for name in (EAST, WEST):
        found = scene.w.home.of_kind("StatefulSet")[name]
        assert found["spec"]["template"]["spec"]["schedulingGates"] == [{"name": GATE}]
        assert "kueue.x-k8s.io/queue-name" not in found["metadata"]["labels"]
    scene.w.api.writes.clear()
    scene.run(60)
    assert {kind for _, kind, _ in scene.w.api.writes} <= {"DiLoCoJob"}, "nothing more is written"


def test_a_preempted_learner_leaves_alone_and_comes_back() -> None:
    scene = training()
    before = scene.uids()
    scene.q.quota = 4
    scene.q.evict(MIDDLE)
    scene.run(10)
    assert "deletionTimestamp" in scene.w.pods.pods[MIDDLE]["metadata"]
    assert scene.q.conditions(MIDDLE)["QuotaReserved"] == "True", "its pod may still hand in work"
    scene.run(40)
    assert scene.q.conditions(MIDDLE)["QuotaReserved"] == "False"
    assert "admission" not in scene.q.workloads[MIDDLE]["status"]
    others = {name: uid for name, uid in before.items() if name != MIDDLE}
    assert scene.uids() == others
    assert scene.learners() == {"us-east/new/0", "us-west/old/0", "us-west/old/2"}
    assert scene.reasons().count("LearnerQueued") == 1
    assert (scene.w.condition("Ready")["status"], scene.w.condition("Degraded")["status"]) == ("True", "False")
    scene.q.quota = 5
    scene.run(60)
    assert others.items() <= scene.uids().items()
    assert len(scene.learners()) == 4
    assert scene.q.conditions(MIDDLE)["PodsReady"] == "True"


def test_a_higher_priority_takes_learner_by_learner_and_gives_back() -> None:
    scene = training(quota=7)
    before = scene.uids()
    scene.create("urgent", "high")
    scene.run(180)
    assert len(scene.learners("urgent")) == 4
    assert scene.learners() == {"us-east/new/0"}, "what the syncer needs stays"
    assert scene.uids() == {name: uid for name, uid in before.items() if name.startswith((FIRST, EAST))}
    assert scene.q.used <= 7
    scene.delete("urgent")
    scene.run(90)
    assert len(scene.learners()) == 4


def test_without_the_first_workload_all_leave_and_then_quota_is_free() -> None:
    scene = training()
    scene.q.quota = 0
    scene.q.evict(FIRST)
    scene.run(10)
    assert {name for name in scene.uids() if name.startswith(FIRST)}, "learners hand in their work first"
    assert scene.q.used == 5
    scene.run(90)
    assert scene.w.pods.pods == {}
    assert scene.q.workloads.keys() == {FIRST}
    assert scene.q.used == 0
    assert (scene.w.status()["phase"], scene.w.status()["reason"]) == ("Pending", "Queued")
    scene.q.quota = 5
    scene.run(120)
    assert len(scene.learners()) == 4
    assert scene.w.syncers["demo"].epoch == 2


def test_a_suspended_job_gives_all_quota_back_and_queues_again() -> None:
    scene = training()
    scene.w.change(suspend=True)
    scene.run(10)
    assert scene.q.used == 5, "while pods end"
    scene.run(90)
    assert (scene.w.condition("Suspended")["status"], scene.q.workloads) == ("True", {})
    scene.w.change(suspend=False)
    scene.run(120)
    assert len(scene.learners()) == 4


def test_a_complete_job_gives_its_quota_back() -> None:
    scene = Scene(quota=5)
    scene.w.change(training={"tokens": 20_000, "sequenceLength": 16, "batchSize": 2})
    scene.w.syncers["demo"].budget = 20_000
    scene.run(400)
    assert scene.w.status()["phase"] == "Complete"
    assert scene.q.workloads == {}


def test_changed_resources_wait_for_quota_of_their_size() -> None:
    scene = training(quota=2)
    before, sets = scene.uids(), scene.q.workloads[FIRST]["spec"]["podSets"]
    for region in (0, 1):
        scene.w.change_pool(region=region, resources={"requests": {"memory": "2Gi"}})
    scene.run(60)
    assert scene.uids() == before
    assert scene.q.workloads[FIRST]["spec"]["podSets"] == sets
    scene.w.change(suspend=True)
    scene.run(90)
    scene.w.change(suspend=False)
    scene.q.quota = 0
    scene.run(20)
    scene.w.change_pool(region=0, resources={"requests": {"memory": "3Gi"}})
    scene.run(20)
    container = scene.q.workloads[FIRST]["spec"]["podSets"][1]["template"]["spec"]["containers"][0]
    assert container["resources"]["requests"]["memory"] == "3Gi"


def test_an_operator_without_memory_goes_on_where_the_last_one_was() -> None:
    scene = Scene(quota=5)
    for _ in range(60):
        scene.q.schedule()
        scene.w.new_operator()
        scene.w.reconcile()
        scene.w.tick()
    assert len(scene.learners()) == 4


def test_a_learner_of_several_nodes_has_its_gang_in_one_workload() -> None:
    scene = Scene(quota=9)
    scene.w.pods.nodes_per_learner["us-west/old"] = 2
    scene.w.change_pool(region=1, nodesPerLearner=2, batchSize=4)
    scene.run(120)
    assert {name: one["spec"]["podSets"][0]["count"] for name, one in scene.q.workloads.items()} == {
        FIRST: 1,
        f"{WEST}-0": 2,
        MIDDLE: 2,
        LAST: 2,
    }
    assert len(scene.learners()) == 4
    scene.q.evict(MIDDLE)
    scene.q.quota = 6
    scene.run(60)
    assert not {f"{WEST}-2", f"{WEST}-3"} & scene.uids().keys()
    assert len(scene.learners()) == 3


@pytest.mark.parametrize(("quorum", "minimum", "first"), [(3, 0, {EAST: 1, WEST: 2}), (1, 2, {WEST: 2})])
def test_the_first_workload_has_what_merges_need(quorum: int, minimum: int, first: dict[str, int]) -> None:
    scene = Scene(quota=0, sync={"quorum": quorum})
    scene.w.change_pool(region=1, minimumLearners=minimum)
    scene.run(20)
    found = {one["name"]: one["count"] for one in scene.q.workloads[FIRST]["spec"]["podSets"]}
    assert found == {"syncer": 1, **first}


def test_the_quota_of_a_learner_that_is_given_up_or_left_out_is_free() -> None:
    scene = training()
    scene.w.pods.troubles[MIDDLE] = crashed(3, "given up")
    scene.w.syncers["demo"].given_up = {"us-west/old/1"}
    scene.run(60)
    assert scene.q.workloads.keys() == ALL - {MIDDLE}
    scene.w.change_pool(region=1, excludedIndices=[2])
    scene.run(60)
    assert scene.q.workloads.keys() == ALL - {MIDDLE, LAST}
    assert scene.learners() == {"us-east/new/0", "us-west/old/0"}


def test_without_the_flavor_nothing_starts_and_the_job_says_so() -> None:
    scene = Scene(quota=5)
    scene.w.home.delete("ResourceFlavor", FLAVOR)
    scene.run(60)
    assert scene.uids() == {}
    found = scene.w.condition("Degraded")
    assert (found["reason"], found["message"]) == ("QueueUnusable", "ResourceFlavor spot cannot be read: not found")


def test_a_priority_that_does_not_exist_is_told_and_queues_nothing() -> None:
    scene = Scene(quota=0)
    scene.create("other", "none")
    scene.run(30)
    assert scene.q.workloads.keys() == {FIRST}
    why = "spec.queue.priorityClass: WorkloadPriorityClass none cannot be read: not found"
    assert scene.w.condition("Degraded", "other")["message"] == why
    assert scene.w.condition("Ready", "other")["message"] == why
