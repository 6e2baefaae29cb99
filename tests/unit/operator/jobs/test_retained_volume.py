"""A claim that outlives its job: never deleted with it, and used by a later job only if that asks for it."""

from typing import Any

from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.operator_world import job_object

CLAIM = ("PersistentVolumeClaim", "demo-syncer")


def storage(**fields: Any) -> dict[str, Any]:
    return {"storage": {"whenDeleted": "Retain", **fields}}


def world_with(**fields: Any) -> ClusterWorld:
    world = ClusterWorld(job_names=())
    world.create(job_object(tokens=10_000_000, syncer=storage(**fields)), 1)
    world.run(60)
    return world


def delete_job(world: ClusterWorld) -> None:
    """Delete the job; Kubernetes deletes what it owns."""
    job = world.home.objects.pop(("DiLoCoJob", "demo"))
    for key, item in list(world.home.objects.items()):
        if any(owner["uid"] == job["metadata"]["uid"] for owner in item["metadata"].get("ownerReferences", ())):
            del world.home.objects[key]
            world.home.applied.pop(key, None)
    world.pods.pods.clear()
    world.new_operator()


def test_a_retained_claim_outlives_its_job_and_is_not_taken_unasked() -> None:
    w = world_with()
    assert w.status()["syncer"]["claimUid"] == w.home.objects[CLAIM]["metadata"]["uid"]
    assert w.condition("Degraded")["status"] == "False"
    delete_job(w)
    assert [key for key in w.home.objects if key[0] != "DiLoCoJob"] == [CLAIM]
    before = w.home.objects[CLAIM]
    w.create(job_object(tokens=10_000_000), 2)
    w.run(60)
    assert w.home.objects[CLAIM] == before
    assert not w.home.pods_of("syncer", "demo")
    degraded = w.condition("Degraded")
    assert degraded["reason"] == "NameTaken"
    assert "set spec.syncer.storage.adoptRetained: true" in degraded["message"]
    # Until it is asked to.
    w.change(syncer={"storage": {"adoptRetained": True}})
    w.run(60)
    assert w.condition("Ready")["status"] == "True"


def test_a_claim_is_adopted_by_one_job_after_another_until_one_owns_it() -> None:
    w = world_with()
    uid = w.home.objects[CLAIM]["metadata"]["uid"]
    w.home.objects[CLAIM]["spec"]["resources"]["requests"]["storage"] = "40Gi"  # somebody has enlarged it
    owned = {"storage": {"adoptRetained": True}}
    for number, syncer in ((2, storage(adoptRetained=True)), (3, storage(adoptRetained=True)), (4, owned)):
        delete_job(w)
        w.create(job_object(tokens=10_000_000, syncer=syncer), number)
        w.run(60)
        assert w.status()["syncer"]["claimUid"] == w.home.objects[CLAIM]["metadata"]["uid"] == uid
        assert (w.condition("Ready")["status"], w.condition("Degraded")["status"]) == ("True", "False")
    assert w.home.objects[CLAIM]["spec"]["resources"]["requests"]["storage"] == "40Gi"
    delete_job(w)
    assert CLAIM not in w.home.objects


def test_a_claim_of_somebody_else_is_never_adopted() -> None:
    w = world_with(adoptRetained=True)
    delete_job(w)
    del w.home.objects[CLAIM]["metadata"]["labels"]["diloco.dev/retained-by"]
    before = w.home.objects[CLAIM]
    w.create(job_object(tokens=10_000_000, syncer=storage(adoptRetained=True)), 2)
    w.run(60)
    assert w.home.objects[CLAIM] == before
    assert w.condition("Degraded")["reason"] == "NameTaken"
