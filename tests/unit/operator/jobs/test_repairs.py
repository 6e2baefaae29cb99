"""Objects that others change are repaired; something that keeps reverting one is named, and repaired with pauses."""

from typing import Any

import pytest

from diloco_operator.api_server.kinds import Kind, Object
from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.world_pods import copied
from tests.unit.operator.jobs.training_cluster import OLD, training

POLICY = ("NetworkPolicy", "demo-syncer")
NEW_SYNCER: dict[str, Any] = {"ingress": [{}]}


def revert(world: ClusterWorld) -> None:
    world.home.put({**world.home.objects[POLICY], "spec": NEW_SYNCER})


def scale(world: ClusterWorld, replicas: int) -> None:
    pool = world.home.objects["StatefulSet", OLD]
    world.home.put({**pool, "spec": {**pool["spec"], "replicas": replicas}})


def is_repaired(world: ClusterWorld) -> bool:
    return bool(world.home.objects[POLICY]["spec"] != NEW_SYNCER)


def reverted_events(world: ClusterWorld) -> list[str]:
    return [one["note"] for one in world.api.events if one["reason"] == "ObjectReverted"]


def test_a_new_process_applies_every_object_once_and_its_claim_never() -> None:
    w = training()
    w.new_operator()
    w.api.writes.clear()
    w.run(60)
    applied = [(kind, name) for verb, kind, name in w.api.writes if verb == "apply"]
    assert len(applied) == len(set(applied))
    assert {kind for kind, _ in applied}.isdisjoint({"PersistentVolumeClaim"})
    assert set(applied) == {key for key in w.home.applied if key[0] != "PersistentVolumeClaim"}


def test_what_somebody_keeps_reverting_is_named_and_repaired_once_a_minute() -> None:
    w = training()
    w.api.reverter = "kubectl-edit"
    for _ in range(3):
        revert(w)
        w.reconcile()
        assert is_repaired(w)
    (told,) = reverted_events(w)
    assert "NetworkPolicy demo-syncer: .spec.ingress was changed" in told
    assert 'conflict with "kubectl-edit"' in told
    assert (w.condition("Degraded")["reason"], w.condition("Degraded")["message"]) == ("ObjectReverted", told)
    revert(w)
    w.run(50)
    assert not is_repaired(w)
    w.run(20)
    assert is_repaired(w)
    assert len(reverted_events(w)) == 1
    assert w.condition("Degraded")["reason"] == "ObjectReverted", "it may last"
    w.run(130)
    assert w.condition("Degraded")["status"] == "False"


def test_a_pool_that_is_kept_at_zero_is_told_with_both_values() -> None:
    w = training()
    for _ in range(4):
        scale(w, 0)
        w.reconcile()
    told = "something keeps changing StatefulSet demo--us-west-old: .spec.replicas is 0 instead of 3; the API server"
    assert w.condition("Degraded")["reason"] == "ObjectReverted"
    assert told in w.condition("Degraded")["message"]


@pytest.mark.parametrize("watched_first", [False, True])
def test_a_pool_that_is_scaled_up_again_and_again_is_told(watched_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    w = training()
    overwrite = w.api.overwrite

    async def reported_before_it_is_answered(kind: Kind, patch: Object) -> Object:
        made = await overwrite(kind, patch)
        w.cache.seen(kind.name, copied(made))
        return made

    if watched_first:
        monkeypatch.setattr(w.api, "overwrite", reported_before_it_is_answered)
    for _ in range(4):
        scale(w, 9)
        w.reconcile()
        assert w.home.objects["StatefulSet", OLD]["spec"]["replicas"] == 3
    (told,) = reverted_events(w)
    assert (
        "StatefulSet demo--us-west-old: .spec.replicas is 9 instead of 3; the API server names nobody: an autoscaler"
        in told
    )
    w.run(130)
    assert w.condition("Degraded")["status"] == "False"


def test_a_job_that_is_suspended_often_is_changed_by_its_user() -> None:
    w = training()
    for suspend in (True, False) * 5:
        w.change(suspend=suspend)
        w.run(40)
    assert reverted_events(w) == []


def test_a_change_of_the_manifest_is_never_delayed() -> None:
    w = training()
    for _ in range(4):
        revert(w)
        w.reconcile()
    assert not is_repaired(w)
    w.change(suspend=True)
    w.reconcile()
    assert not is_repaired(w), "the policy itself has not changed"
    assert {item["spec"]["replicas"] for item in w.home.of_kind("StatefulSet").values()} == {0}


def test_after_a_quiet_time_it_is_repaired_at_once_again() -> None:
    w = training()
    for _ in range(3):
        revert(w)
        w.reconcile()
    w.run(601, every=30)
    for _ in range(2):
        revert(w)
        w.reconcile()
        assert is_repaired(w)


def test_an_object_of_another_job_is_left_alone_although_it_is_known() -> None:
    w = ClusterWorld(job_names=("demo", "other"))
    w.run(60)
    secret = w.home.objects["Secret", "demo-syncer-tls"]
    secret["metadata"] |= {
        "ownerReferences": w.home.of_kind("Secret")["other-ca"]["metadata"]["ownerReferences"],
        "labels": secret["metadata"]["labels"] | {"diloco.dev/job": "other"},
        "resourceVersion": "100000",
    }
    secret["data"] = {"mine": "eA=="}
    w.api.writes.clear()
    w.reconcile("demo")
    assert not [write for write in w.api.writes if write[1:] == ("Secret", "demo-syncer-tls")]
    assert w.condition("Degraded")["reason"] == "NameTaken"
    assert "names taken by another owner: Secret demo-syncer-tls" in w.condition("Degraded")["message"]
