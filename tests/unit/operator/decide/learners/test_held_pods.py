from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from diloco_operator.decide.learners.held_pods import MOST_AT_ONCE, MOST_WITH_THEM, Holding, holding, pods_by_set
from diloco_operator.decide.objects.workloads import PoolWorkload
from diloco_operator.decide.observed import ChildKey, Object, PodObserved
from diloco_operator.manifests.placement.holds import GATE, creates_gated, held_back, without_gate
from diloco_operator.names import PoolKey
from testbed.virtual_cluster.world_pods import SILENT, crashed, unschedulable

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
NAME, UID = "job--here-pool", "set-uid"
LOST_AFTER_SECONDS = 60.0
GATES = [{"name": GATE}]
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def pod(
    index: int, *, gated: bool = False, leaving: float | None = None, revision: str = "new", **status: Any
) -> Object:
    found: Object = {
        "metadata": {
            "name": f"{NAME}-{index}",
            "uid": f"pod-{index}",
            "labels": {"controller-revision-hash": revision},
        },
        "spec": {"schedulingGates": GATES} if gated else {"nodeName": "node"},
        "status": status or READY,
    }
    if leaving is not None:
        found["metadata"]["deletionTimestamp"] = (NOW - timedelta(seconds=leaving)).isoformat().replace("+00:00", "Z")
    return found


def live(*, gated: bool = False, seen: bool = True, replicas: int = 4) -> Object:
    template = {"metadata": {}, "spec": {"schedulingGates": GATES} if gated else {}}
    return {
        "metadata": {"name": NAME, "uid": UID, "generation": 7},
        "spec": {"template": template, "replicas": replicas},
        "status": {"observedGeneration": 7 if seen else 6, "replicas": replicas, "updateRevision": "new"},
    }


def decide(
    item: Object | None,
    pods: dict[int, Object] | None,
    *,
    held: Collection[int] = (1,),
    learners: int = 4,
    nodes: int = 1,
    minimum: int | None = None,
) -> Holding:
    key, out = ChildKey("StatefulSet", NAME), frozenset(held)
    workload = PoolWorkload(PoolKey("here", "pool"), key, item, learners, minimum, given_up=out, nodes=nodes)
    return holding(workload, pods, NOW, LOST_AFTER_SECONDS, may_delete=True)


def others(**pods: Object) -> dict[int, Object]:
    return {index: pod(index) for index in range(4)} | {int(key[1:]): one for key, one in pods.items()}


def deleted(found: Holding) -> list[str]:
    return [one.child.name for one in found.delete]


def test_a_set_without_held_pods_is_left_alone() -> None:
    lists: tuple[dict[int, Object] | None, ...] = (others(), None, {})
    assert [decide(live(), there, held=set()) for there in lists] == [Holding()] * 3
    assert decide(None, None, held=set()) == Holding()


WITH_GATE = pod(1, gated=True)
ANOTHER_WITH_IT = others(p1=WITH_GATE, p3=pod(3, gated=True))
STEPS: dict[str, tuple[Object, dict[int, Object], bool, list[str]]] = {
    "without the gate no pod is deleted": (live(), others(), True, []),
    "the controller has not seen the gate": (live(gated=True, seen=False), others(), True, []),
    "the controller has seen it": (live(gated=True), others(), True, [f"{NAME}-1"]),
    "the next pod is not there": (live(gated=True), {i: pod(i) for i in (0, 2, 3)}, True, []),
    "the last pod is leaving": (live(gated=True), others(p1=pod(1, leaving=LOST_AFTER_SECONDS - 1)), True, []),
    "the last pod is lost": (live(gated=True), others(p1=pod(1, leaving=LOST_AFTER_SECONDS)), False, []),
    "it is done": (live(gated=True), others(p1=WITH_GATE), False, []),
    "another would have the gate again": (live(gated=True), ANOTHER_WITH_IT, False, []),
    "another is made without it": (live(), ANOTHER_WITH_IT, False, [f"{NAME}-3"]),
}
"""The set, its pods, whether it shall have the gate now, and the pods to delete."""


@pytest.mark.parametrize("step", STEPS)
def test_a_held_pod_is_made_anew_with_a_gate_that_no_other_gets(step: str) -> None:
    item, there, gate, gone = STEPS[step]
    found = decide(item, there)
    assert (found.gate, deleted(found)) == (gate, gone)
    assert not any(one.by_force for one in found.delete)


def test_the_pod_of_a_learner_that_is_let_back_in_is_made_anew() -> None:
    assert deleted(decide(live(), others(p1=WITH_GATE), held=set())) == [f"{NAME}-1"]
    assert decide(live(), others(p1=WITH_GATE)).held == 1


def test_pods_that_were_not_listed_change_nothing() -> None:
    for item in (live(gated=True), live()):
        lists: tuple[dict[int, Object] | None, ...] = (None, {})
        for unknown in lists:
            found = decide(item, unknown)
            assert (found.gate, found.delete, found.held) == (creates_gated(item), (), None)


@pytest.mark.parametrize("missing", [MOST_WITH_THEM, MOST_WITH_THEM + 1])
def test_few_other_pods_are_created_with_the_gate(missing: int) -> None:
    learners = missing + 5
    there = {index: pod(index) for index in range(learners - missing)}
    assert decide(live(replicas=learners), there, learners=learners).gate == (missing <= MOST_WITH_THEM)


def test_outdated_pods_are_replaced_one_by_one_without_the_held_one() -> None:
    held = pod(1, gated=True, revision="gated")
    assert deleted(decide(live(), others(p0=pod(0, revision="old"), p1=held, p3=pod(3, revision="old")))) == [
        f"{NAME}-3"
    ]
    assert deleted(decide(live(), others(p0=pod(0, revision="old"), p1=held, p3=pod(3, phase="Pending")))) == []
    broken = pod(2, revision="old", phase="Pending")
    assert deleted(decide(live(), others(p0=pod(0, revision="old"), p1=held, p2=broken))) == [f"{NAME}-2"]
    leaving = others(p0=pod(0, revision="old"), p1=held, p3=pod(3, leaving=0))
    assert deleted(decide(live(), leaving)) == []


NO_NODE = unschedulable("no node")
WITHOUT: dict[str, Object] = {
    "waits for a node": pod(3, **NO_NODE),
    "is on a silent node": pod(3, conditions=SILENT),
    "is lost": pod(3, leaving=LOST_AFTER_SECONDS),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_an_elastic_pool_is_rolled_out_without_one_that_has_no_node(case: str) -> None:
    there = others(p0=pod(0, revision="old"), p1=pod(1, revision="old"), p3=WITHOUT[case])
    found = decide(live(), there, held=set(), minimum=3)
    assert (deleted(found), found.old, found.waits_for) == ([f"{NAME}-1"], 2, frozenset())
    for minimum in (4, None):
        found = decide(live(), there, held=set(), minimum=minimum)
        assert (deleted(found), found.old, found.waits_for) == ([], 2, frozenset({"here/pool/3"})), minimum


def test_an_elastic_pool_waits_for_one_that_starts_crashes_or_ends() -> None:
    for one in (pod(3, phase="Pending"), pod(3, **crashed(1, "x")), pod(3, leaving=LOST_AFTER_SECONDS - 1)):
        found = decide(live(), others(p0=pod(0, revision="old"), p3=one), held=set(), minimum=0)
        assert (deleted(found), found.waits_for) == ([], frozenset({"here/pool/3"}))
    found = decide(live(), {0: pod(0, revision="old"), 1: pod(1), 2: pod(2)}, held=set(), minimum=0)
    assert (deleted(found), found.waits_for) == ([], frozenset({"here/pool/3"})), "there is none"
    there = others(p0=pod(0, revision="old", **NO_NODE), p2=pod(2, revision="old"))
    found = decide(live(), there, held=set(), minimum=0)
    assert deleted(found) == [f"{NAME}-0"], "that costs nothing"


def test_outdated_pods_that_the_pool_no_longer_has_do_not_count() -> None:
    old = {index: pod(index, revision="old") for index in range(4)}
    assert decide(live(), old, learners=2).old == 1, "one is held, two are too many"


def test_all_outdated_pods_of_one_learner_are_replaced_at_once() -> None:
    old = {index: pod(index, revision="old") for index in range(4)}
    replaced: dict[str, tuple[dict[int, Object], list[int]]] = {
        "the last one": (old, [2, 3]),
        "what is left of it": (old | {3: pod(3)}, [2]),
        "the one that does not work": (old | {1: pod(1, phase="Pending")}, [0]),
        "none while another starts": ({0: old[0], 1: old[1], 2: pod(2), 3: pod(3, phase="Pending")}, []),
    }
    for case, (there, gone) in replaced.items():
        found = decide(live(), there, held=set(), learners=2, nodes=2)
        assert deleted(found) == [f"{NAME}-{index}" for index in gone], case


def test_a_learner_is_held_once_all_its_pods_have_the_gate() -> None:
    there = others(p2=pod(2, gated=True))
    found = decide(live(gated=True), there, learners=2, nodes=2)
    assert (deleted(found), found.held) == ([f"{NAME}-3"], 0)
    assert [one.whose for one in found.delete] == ["here/pool/1 (node 1)"]
    assert decide(live(), there | {3: pod(3, gated=True)}, learners=2, nodes=2).held == 1


def test_a_bounded_number_of_pods_is_deleted_at_once() -> None:
    learners = MOST_AT_ONCE + 20
    there = {index: pod(index) for index in range(learners)}
    found = decide(live(gated=True, replicas=learners), there, held=set(range(learners)), learners=learners)
    assert len(found.delete) == MOST_AT_ONCE


def test_a_pod_of_another_name_or_owner_is_none_of_the_sets() -> None:
    owner = {"uid": UID, "controller": True}
    stranger, orphan = pod(1), pod(2)
    stranger["metadata"] |= {"name": "database-1", "ownerReferences": [owner]}
    orphan["metadata"]["ownerReferences"] = [{**owner, "controller": False}]
    found = pods_by_set([PodObserved(stranger), PodObserved(orphan), PodObserved(pod(0))])
    assert found == {("", UID): {1: stranger}}
    assert deleted(decide(live(gated=True), found["", UID])) == []


def test_gates_of_others_stay_in_a_template() -> None:
    theirs = {"name": "kueue.x-k8s.io/admission"}
    item = {"spec": {"template": {"spec": {"schedulingGates": [theirs]}}}}
    gated = held_back(item)["spec"]["template"]
    assert gated["spec"]["schedulingGates"] == [theirs, {"name": GATE}]
    assert without_gate(gated) == item["spec"]["template"]
    assert without_gate(held_back({"spec": {"template": {"spec": {}}}})["spec"]["template"]) == {"spec": {}}
