"""What one Workload of Kueue says, and what its owner writes into its status."""

from datetime import UTC, datetime
from typing import Any

import pytest

from diloco_operator.decide.observed import Flavor
from diloco_operator.decide.queue.workload import Placing, Workload

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
BEFORE, THEN = "2026-03-01T11:00:00Z", "2026-03-01T12:00:00Z"
FLAVORS = {
    "spot": Flavor({"pool": "spot"}, ({"key": "spot", "operator": "Exists"},)),
    "big": Flavor({"disk": "big"}, ({"key": "spot", "operator": "Exists"},)),
}


def condition(type_: str, status: str, reason: str = "Pending", message: str = "") -> dict[str, Any]:
    return {"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": BEFORE}


def workload(*conditions: dict[str, Any], **status: Any) -> Workload:
    metadata = {"namespace": "team", "name": "demo-syncer", "uid": "u", "resourceVersion": "7", "generation": 2}
    return Workload({"metadata": metadata, "spec": {"podSets": []}, "status": {**status, "conditions": [*conditions]}})


def admitted(**status: Any) -> Workload:
    sets = [{"name": "a", "flavors": {"cpu": "spot", "storage": "big"}}, {"name": "b", "flavors": {"cpu": "other"}}]
    conditions = (condition("QuotaReserved", "True"), condition("Admitted", "True"))
    return workload(*conditions, admission={"podSetAssignments": sets}, **status)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        ((), "Kueue has not looked at it yet"),
        ((condition("QuotaReserved", "False", message="no room"),), "no room"),
        ((condition("QuotaReserved", "True"), condition("Admitted", "False", message="checks")), "checks"),
        (
            (condition("QuotaReserved", "True", message="reserved"), condition("Evicted", "True", message="preempted")),
            "preempted",
        ),
    ],
)
def test_kueues_message_says_why_it_may_not_run(conditions: tuple[dict[str, Any], ...], said: str) -> None:
    found = workload(*conditions)
    assert not found.admitted
    assert found.message == said


def test_a_workload_without_a_status_waits() -> None:
    found = Workload({"metadata": {"name": "w"}, "spec": {"podSets": []}})
    assert (found.reserved, found.admitted, found.evicted) == (False, False, False)
    assert found.placing("a", FLAVORS) == Placing()


def test_pods_are_placed_by_every_flavor_and_check_of_their_set() -> None:
    update = {"name": "a", "nodeSelector": {"zone": "z"}, "annotations": {"request": "r"}, "labels": {"l": "1"}}
    checks = [{"name": "c", "podSetUpdates": [update, {"name": "b", "nodeSelector": {"zone": "other"}}]}]
    found = admitted(admissionChecks=checks).placing("a", FLAVORS)
    assert found is not None
    assert found.node_selector == {"pool": "spot", "disk": "big", "zone": "z"}
    assert found.tolerations == ({"key": "spot", "operator": "Exists"},)
    assert (found.labels, found.annotations) == ({"l": "1"}, {"request": "r"})
    assert admitted().placing("b", FLAVORS) is None, "its flavor could not be read"
    assert admitted().flavors == {"spot", "big", "other"}


@pytest.mark.parametrize(
    ("reason", "again"), [("Preempted", "True"), ("NodeFailures", "True"), ("PodsReadyTimeout", "False")]
)
def test_quota_that_is_given_back_is_asked_for_again_as_kueue_wants(reason: str, again: str) -> None:
    others = condition("Preempted", "True"), condition("PodsReady", "True")
    evicted = condition("Evicted", "True", reason, "for another")
    one = workload(condition("QuotaReserved", "True"), condition("Admitted", "True"), evicted, *others)
    patch = one.released(NOW)
    assert patch["metadata"] == {"namespace": "team", "name": "demo-syncer", "uid": "u", "resourceVersion": "7"}
    assert patch["status"]["admission"] is None
    found = {made["type"]: made for made in patch["status"]["conditions"]}
    assert {type_: made["status"] for type_, made in found.items()} == {
        "Evicted": "True",
        "Preempted": "True",
        "QuotaReserved": "False",
        "Admitted": "False",
        "Requeued": again,
        "PodsReady": "False",
    }
    assert (found["Evicted"], found["Preempted"]) == (evicted, others[0])
    assert (found["QuotaReserved"]["message"], found["Requeued"]["reason"]) == ("for another", reason)
    assert {made["lastTransitionTime"] for made in found.values()} == {BEFORE, THEN}


def test_kueue_is_told_that_pods_are_ready_and_keeps_its_own_conditions() -> None:
    patch = admitted().ready(NOW)
    found = {made["type"]: made["status"] for made in patch["status"]["conditions"]}
    assert found == {"QuotaReserved": "True", "Admitted": "True", "PodsReady": "True"}
    assert "admission" not in patch["status"]
