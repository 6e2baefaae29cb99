"""Two jobs never write to the same object, and objects from an earlier version keep their names."""

from testbed.virtual_cluster.cluster_world import ClusterWorld
from testbed.virtual_cluster.operator_world import job_object
from testbed.virtual_cluster.world_pods import Object

EARLIER = "train-us-east-a"
"""What earlier versions called the set of a pool of either job."""


def job(name: str, region: str) -> Object:
    regions = [{"name": region, "pools": [{"name": "a", "learners": 1}]}]
    return job_object(name, tokens=10_000_000, regions=regions)


def two_jobs() -> ClusterWorld:
    """Two jobs whose objects' names would be equal under the earlier rule."""
    world = ClusterWorld(job_names=())
    world.create(job("train", "us-east"), 1)
    world.create(job("train-us", "east"), 2)
    return world


def owner(item: Object) -> str:
    (only,) = item["metadata"]["ownerReferences"]
    return str(only["name"])


def renamed(world: ClusterWorld, name: str) -> None:
    """The objects as an earlier version created and recorded them: the set, its Secret and the pod's volume."""
    (region,) = world.status(name)["regions"]
    now = region["pools"][0]["statefulSet"]
    for kind, suffix in (("StatefulSet", ""), ("Secret", "-tls")):
        item = world.api.objects.pop((kind, now + suffix))
        item["metadata"]["name"] = EARLIER + suffix
        world.api.objects[kind, EARLIER + suffix] = item
        if kind == "StatefulSet":
            volumes = item["spec"]["template"]["spec"]["volumes"]
            next(one for one in volumes if one["name"] == "tls")["secret"]["secretName"] = f"{EARLIER}-tls"
            for pod in list(world.api.pods.pods):
                if pod.startswith(now):
                    del world.api.pods.pods[pod]
    region["pools"][0]["statefulSet"] = EARLIER
    world.tick()
    world.tick()


def test_two_jobs_whose_names_ran_together_have_objects_of_their_own() -> None:
    w = two_jobs()
    w.run(60)
    for name in ("train", "train-us"):
        assert w.status(name)["phase"] == "Training"
        assert w.condition("Degraded", name)["status"] == "False"
    sets = w.of_kind("StatefulSet")
    assert sorted(sets) == ["train--us-east-a", "train-us--east-a"]
    assert [owner(w.of_kind("Secret")[f"{name}-tls"]) for name in sorted(sets)] == ["train", "train-us"]


def test_an_object_of_another_job_is_left_alone_although_it_is_known() -> None:
    w = ClusterWorld(job_names=("demo", "other"))
    w.run(60)
    secret = w.api.objects["Secret", "demo-syncer-tls"]
    secret["metadata"] |= {
        "ownerReferences": w.of_kind("Secret")["other-ca"]["metadata"]["ownerReferences"],
        "labels": secret["metadata"]["labels"] | {"diloco.dev/job": "other"},
        "resourceVersion": "100000",
    }
    secret["data"] = {"mine": "eA=="}
    w.api.writes.clear()
    w.reconcile("demo")
    assert not [write for write in w.api.writes if write[1:] == ("Secret", "demo-syncer-tls")]
    assert w.condition("Degraded")["reason"] == "NameTaken"
    assert "names taken by another owner: Secret demo-syncer-tls" in w.condition("Degraded")["message"]


def test_a_running_job_of_an_earlier_version_keeps_its_names_and_its_pods() -> None:
    w = ClusterWorld(job_names=())
    w.create(job("train", "us-east"), 1)
    w.run(60)
    renamed(w, "train")
    w.new_operator()
    w.run(30)
    pods = dict(w.api.pods.pods)
    assert f"{EARLIER}-0" in pods
    w.run(120)
    assert list(w.of_kind("StatefulSet")) == [EARLIER]
    assert f"{EARLIER}-tls" in w.of_kind("Secret")
    assert {name: pod["metadata"]["uid"] for name, pod in pods.items()} == {
        name: pod["metadata"]["uid"] for name, pod in w.api.pods.pods.items()
    }
    assert w.status("train")["regions"][0]["pools"][0]["statefulSet"] == EARLIER


def test_a_set_whose_labels_somebody_removed_gets_no_second_one_beside_it() -> None:
    w = ClusterWorld(job_names=())
    w.create(job("train", "us-east"), 1)
    w.run(60)
    renamed(w, "train")
    w.run(10)
    w.api.objects["StatefulSet", EARLIER]["metadata"] |= {"labels": {}, "resourceVersion": "100000"}
    w.run(30)
    assert list(w.of_kind("StatefulSet")) == [EARLIER]
    assert w.of_kind("StatefulSet")[EARLIER]["metadata"]["labels"]["diloco.dev/pool"] == "a"


def test_two_jobs_that_shared_a_secret_part_after_the_upgrade() -> None:
    w = two_jobs()
    w.run(60)
    renamed(w, "train")
    # The other one never had a set, and overwrote the Secret in turn.
    for kind, name in [("StatefulSet", "train-us--east-a"), ("Secret", "train-us--east-a-tls")]:
        del w.api.objects[kind, name]
    w.status("train-us")["regions"][0]["pools"][0]["statefulSet"] = EARLIER
    shared = w.api.objects["Secret", f"{EARLIER}-tls"]
    shared["metadata"] |= {
        "ownerReferences": w.of_kind("Secret")["train-us-ca"]["metadata"]["ownerReferences"],
        "labels": shared["metadata"]["labels"] | {"diloco.dev/job": "train-us"},
    }
    w.new_operator()
    w.run(90)
    assert sorted(w.of_kind("StatefulSet")) == ["train-us--east-a", EARLIER]
    for name, set_name in (("train", EARLIER), ("train-us", "train-us--east-a")):
        assert owner(w.of_kind("Secret")[f"{set_name}-tls"]) == name
        assert w.condition("Degraded", name)["status"] == "False"
