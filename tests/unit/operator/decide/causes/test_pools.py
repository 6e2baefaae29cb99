from typing import Any

import pytest

from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import copied, crashed, running, unschedulable, waiting
from tests.unit.operator.decide.training_world import OLD, degraded, lose, training_world

NO_NODE = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu"
EVICTED = {"phase": "Failed", "reason": "Preempting", "message": "Preempted by scheduler"}


def elastic_world(minimum: int, learners: int = 3, **troubles: dict[str, Any]) -> World:
    """A job with one learner here and an elastic pool; ``troubles``: pods of the pool by ``p`` and their index."""
    regions = [
        {"name": "us-east", "pools": [{"name": "new", "learners": 1}]},
        {"name": "us-west", "pools": [{"name": "old", "learners": learners, "minimumLearners": minimum}]},
    ]
    world = World(job=job_object(tokens=100_000_000, regions=regions))
    world.pods.troubles |= {f"{OLD}{index.removeprefix('p')}": trouble for index, trouble in troubles.items()}
    world.run(60)
    return world


def pool(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.status["regions"][1]["pools"][0]
    return {key: found.get(key) for key in ("training", "minimum", "desired", "waiting", "message")}


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (unschedulable(f"{NO_NODE}."), f"unschedulable: {NO_NODE}"),
        (EVICTED, "evicted: Preempting: Preempted by scheduler"),
    ],
)
def test_pods_that_wait_beyond_the_minimum_are_told_and_do_no_harm(trouble: dict[str, Any], words: str) -> None:
    w = elastic_world(1, p1=trouble, p2=trouble)
    assert degraded(w) == ("False", "AsExpected", "")
    assert pool(w) == {
        "training": 1,
        "minimum": 1,
        "desired": 3,
        "waiting": 2,
        "message": f"2 of 3 learners of us-west/old (minimum 1) {words}",
    }
    assert w.status["phase"] == "Training"
    assert w.status["learners"]["summary"] == "2/4"
    assert [event for event in w.events if event.type == "Warning"] == []
    written, applied = w.status_writes, w.home.writes
    w.run(10)
    # Nothing but progress is written while they wait.
    assert w.status_writes <= written + 1
    assert w.home.writes == applied
    w.pods.troubles.clear()
    w.run(60)
    assert pool(w) == {"training": 3, "minimum": 1, "desired": 3, "waiting": None, "message": None}


def test_below_the_minimum_the_job_is_degraded_until_a_node_comes() -> None:
    w = elastic_world(2, p1=unschedulable(NO_NODE), p2=unschedulable(NO_NODE))
    message = f"2 of 3 learners of us-west/old (minimum 2) unschedulable: {NO_NODE}"
    assert degraded(w) == ("True", "Unschedulable", message)
    assert pool(w)["waiting"] == 2
    assert w.condition("Ready")["status"] == "True"
    del w.pods.troubles[f"{OLD}1"]
    w.run(60)
    assert degraded(w) == ("False", "AsExpected", "")
    assert pool(w)["waiting"] == 1


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (waiting("ErrImagePull", "not found", image="r.example/none:1"), "ImagePullFailed"),
        (crashed(1, "ValueError: x"), "CrashLooping"),
        (unschedulable('persistentvolumeclaim "corpus" not found'), "VolumePending"),
    ],
)
def test_what_is_wrong_on_any_node_is_a_problem_of_any_pool(trouble: dict[str, Any], reason: str) -> None:
    w = elastic_world(0, p1=unschedulable(NO_NODE), p2=trouble)
    status, told, message = degraded(w)
    assert (status, told) == ("True", reason)
    assert message.startswith("1 of 3 learners of us-west/old (minimum 0) ")
    assert NO_NODE not in message
    assert pool(w)["waiting"] == 1


def test_a_learner_on_a_node_that_vanished_is_not_mourned() -> None:
    w = elastic_world(1)
    assert pool(w)["training"] == 3
    # What the node lifecycle controller makes of a pod whose kubelet is not heard of.
    away = running(w.now)
    away["conditions"] = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    w.pods.troubles[f"{OLD}2"] = away
    w.run(90)
    assert degraded(w) == ("False", "AsExpected", "")
    gone = "1 of 3 learners of us-west/old (minimum 1) running but not joined to the syncer: node-1 does not respond"
    assert pool(w)["message"] == gone
    # It is told to end, and cannot.
    name = f"{OLD}2"
    lose(w, name)
    w.run(120)
    assert degraded(w) == ("False", "AsExpected", "")
    # The operator has deleted the pod, so another one took its place.
    assert [one.child.name for one in w.forced] == [name]


def test_learners_that_are_given_up_do_not_make_the_minimum() -> None:
    w = elastic_world(2, learners=4)
    w.syncer.given_up = {"us-west/old/0", "us-west/old/1"}
    w.pods.troubles[f"{OLD}2"] = unschedulable(NO_NODE)
    w.run(60)
    status, reason, message = degraded(w)
    assert (status, reason) == ("True", "Unschedulable")
    assert message.startswith(f"1 of 4 learners of us-west/old (minimum 2) unschedulable: {NO_NODE}; us-west/old/0, ")
    assert (pool(w)["training"], pool(w)["waiting"]) == (1, 1)
    w.syncer.given_up = {"us-west/old/0"}
    w.run(60)
    assert (pool(w)["training"], pool(w)["waiting"]) == (2, 1)
    assert degraded(w)[1] == "LearnersGivenUp", "two run"


def test_one_that_is_given_up_waits_for_no_node() -> None:
    w = elastic_world(1)
    w.syncer.given_up = {"us-west/old/1"}
    w.pods_forbidden = frozenset({""})
    w.pods.troubles[f"{OLD}1"] = unschedulable(NO_NODE)
    w.run(60)
    assert pool(w)["waiting"] is None
    assert degraded(w)[1] == "LearnersGivenUp"


def test_lost_nodes_count_where_the_others_are_given_up() -> None:
    w = elastic_world(2, learners=4)
    w.syncer.given_up = {"us-west/old/0", "us-west/old/1"}
    w.run(60)
    for index in (2, 3):
        lose(w, f"{OLD}{index}")
    w.run(120)
    told = [event.message for event in w.events if event.reason == "NodeLost"]
    assert len(told) == 1
    assert told[0].startswith("2 of 4 learners of us-west/old lost: node-1 does not respond; the operator replaces")


def test_the_lost_pod_of_one_that_is_given_up_is_not_missed() -> None:
    w = elastic_world(3, learners=4)
    w.syncer.given_up = {"us-west/old/0"}
    lose(w, f"{OLD}0")
    w.run(120)
    assert [one.child.name for one in w.forced] == [f"{OLD}0"]
    assert "NodeLost" not in [event.reason for event in w.events]
    assert degraded(w)[1] == "LearnersGivenUp"


def test_a_raised_minimum_makes_who_waits_a_problem_and_a_lowered_none() -> None:
    w = elastic_world(1, p2=unschedulable(NO_NODE))
    for minimum, found in ((3, "True"), (1, "False")):
        w.job["spec"]["regions"][1]["pools"][0]["minimumLearners"] = minimum
        w.job["metadata"]["generation"] += 1
        before = w.home.writes
        w.run(20)
        assert degraded(w)[0] == found
        # The ConfigMap alone: no pod is restarted.
        assert w.home.writes == before + 1


def test_a_syncer_without_a_node_says_if_its_learners_outrank_it() -> None:
    w = elastic_world(1)
    for name, pod in w.pods.pods.items():
        pod["spec"]["priority"] = 1000 if name.startswith(OLD) else 0
    w.pods.troubles["demo-syncer"] = unschedulable(NO_NODE)
    w.run(20)
    assert (
        f"syncer unschedulable: {NO_NODE}; learners of this job have the priority 1000 and the syncer 0, so they can "
        "displace it: set spec.syncer.podTemplate.spec.priorityClassName"
    ) in degraded(w)[2]


def change_resources(world: World) -> dict[str, str]:
    """Of the second region's pool; the uids of its pods before that."""
    regions = copied(world.job["spec"]["regions"])
    regions[1]["pools"][0]["resources"] = {"limits": {"cpu": "8"}}
    world.change(regions=regions)
    return {name: pod["metadata"]["uid"] for name, pod in world.pods.pods.items() if name.startswith(OLD)}


def replaced(world: World, before: dict[str, str]) -> set[str]:
    """The numbers of the pods that are others than before."""
    pods = world.pods.pods
    return {name.removeprefix(OLD) for name, uid in before.items() if pods[name]["metadata"]["uid"] != uid}


def test_an_elastic_pool_without_all_its_nodes_gets_a_changed_template() -> None:
    w = elastic_world(1, p1=unschedulable(NO_NODE))
    before = change_resources(w)
    for _ in range(40):
        w.run(5)
        assert degraded(w) == ("False", "AsExpected", "")
    assert replaced(w, before) == {"0", "1", "2"}
    assert pool(w)["training"] == 2


def test_a_rollout_that_advances_is_no_problem_beside_one_that_is_given_up() -> None:
    w = training_world(failurePolicy={"lostPods": {"action": "Wait"}})
    w.syncer.given_up = {"us-west/old/0"}
    lose(w, f"{OLD}0")
    w.run(120)
    before = change_resources(w)
    for _ in range(40):
        w.run(5)
        assert "new template" not in degraded(w)[2]
    assert replaced(w, before) == {"1", "2"}


def test_learners_wait_for_a_changed_template_while_a_pod_does_not_end() -> None:
    w = training_world(failurePolicy={"lostPods": {"afterSeconds": 3600}})
    lose(w, f"{OLD}0")
    change_resources(w)
    w.run(150)
    told = "2 of 3 learners of us-west/old do not have the new template yet: waiting for us-west/old/0"
    assert told in degraded(w)[2]


def test_learners_wait_for_a_changed_template_while_a_new_pod_has_no_node() -> None:
    w = elastic_world(3)
    change_resources(w)
    w.pods.troubles[f"{OLD}2"] = unschedulable(NO_NODE)
    w.run(90)
    told = "2 of 3 learners of us-west/old do not have the new template yet: waiting for us-west/old/2"
    assert told in degraded(w)[2]
    assert pool(w)["training"] == 2
    w.pods.troubles.clear()
    w.run(90)
    assert (degraded(w)[0], pool(w)["training"]) == ("False", 3)


def test_with_one_template_no_pod_waits_for_another() -> None:
    w = elastic_world(3, p0=crashed(1, "ValueError: x"))
    lose(w, f"{OLD}1")
    w.run(10)
    assert degraded(w)[1:] == (
        "CrashLooping",
        "1 of 3 learners of us-west/old crash-looping: exit code 1: ValueError: x",
    )
