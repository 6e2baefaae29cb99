from typing import Any

import pytest

from diloco_operator.api_server.errors import ApiError, Call, of_status
from testbed.virtual_cluster.cluster_world import ClusterWorld, of_server
from tests.unit.operator.jobs.training_cluster import training

NOT_DECLARED = (
    "failed to create typed patch object (team/x; apps/v1, Kind=StatefulSet): .x: field not declared in schema"
)


def test_an_undeclared_field_is_reported_and_the_other_objects_are_made() -> None:
    w = ClusterWorld()
    w.api.failing = of_server(500, NOT_DECLARED)
    assert w.reconcile() is None
    degraded = w.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyRefused")
    assert "field not declared in schema" in degraded["message"]
    assert w.home.of_kind("Service")
    assert not w.home.of_kind("StatefulSet")


@pytest.mark.parametrize("code", [500, 503])
def test_the_status_is_written_although_the_server_fails_for_one_kind(code: int) -> None:
    w = ClusterWorld()
    w.api.failing = of_server(code, "failed calling webhook: connection refused")
    error = w.reconcile()
    assert error is not None, "it is tried again"
    assert w.status()["phase"] == "Pending"
    assert w.condition("Degraded")["status"] == "False", "once may be chance"
    for _ in range(3):
        w.reconcile()
    assert w.condition("Degraded")["reason"] == "ApplyRefused"
    w.api.failing = lambda *_: None
    w.run(90)
    assert w.status()["phase"] == "Training"
    assert w.condition("Degraded")["status"] == "False"


def test_a_server_that_does_not_answer_is_not_asked_for_every_object() -> None:
    w = ClusterWorld()
    w.reconcile()
    w.home.objects = {key: item for key, item in w.home.objects.items() if key[0] == "DiLoCoJob"}
    tried = []
    refuses = of_server(0, "no answer in time")

    def failing(verb: str, kind: str, name: str, body: dict[str, object]) -> object:
        tried.append(kind)
        return refuses("apply", "StatefulSet", name, body) if verb == "apply" else None

    w.api.failing = failing  # type: ignore[assignment]
    w.reconcile()
    assert tried.count("Secret") == 1


@pytest.mark.parametrize("code", [500, 422, 403, 503])
def test_a_job_whose_sets_cannot_be_applied_is_suspended_all_the_same(code: int) -> None:
    w = training()
    w.api.failing = of_server(code, NOT_DECLARED)
    w.change_pool(resources={"limits": {"cpu": "2"}})
    w.run(60)
    assert w.condition("Degraded")["reason"] == "ApplyRefused"
    w.change(suspend=True)
    w.run(120)
    assert not w.pods.pods
    assert w.condition("Suspended")["status"] == "True"


def test_a_write_that_failed_and_is_wanted_no_longer_is_not_told_any_more() -> None:
    w = training()
    w.api.failing = of_server(503, "failed calling webhook: connection refused")
    w.change_pool(resources={"limits": {"cpu": "2"}})
    w.run(30)
    assert w.condition("Degraded")["reason"] == "ApplyRefused"
    w.change_pool(resources=None)
    w.run(30)
    assert w.condition("Degraded")["status"] == "False"


def test_a_claim_that_a_quota_does_not_allow_is_made_with_another_size() -> None:
    def quota(_: str, kind: str, name: str, body: dict[str, Any]) -> ApiError | None:
        if kind != "PersistentVolumeClaim" or body["spec"]["resources"]["requests"]["storage"] == "1Gi":
            return None
        return of_status(Call("patch", kind, "team", name), 403, {"message": "exceeded quota: requests.storage"})

    w = ClusterWorld()
    w.api.failing = quota
    w.run(30)
    assert w.condition("Degraded")["reason"] == "ApplyRefused"
    assert not w.status()["syncer"].get("claimUid")
    w.change(syncer={"storage": {"size": "1Gi"}})
    w.run(60)
    assert w.condition("Degraded")["status"] == "False"
    assert w.status()["syncer"]["claimUid"]
