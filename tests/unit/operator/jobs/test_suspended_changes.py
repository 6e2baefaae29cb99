import pytest

from testbed.virtual_cluster.cluster_world import ClusterWorld
from tests.support.job_manifests import pods
from tests.unit.operator.jobs.training_cluster import training


def suspended() -> ClusterWorld:
    world = training()
    world.change(suspend=True)
    world.run(90)
    assert world.condition("Suspended")["status"] == "True"
    return world


@pytest.mark.parametrize("together", [False, True])
def test_another_image_and_placement_are_those_of_the_resumed_pods(*, together: bool) -> None:
    w = suspended()
    step = w.status()["progress"]["step"]
    claim = w.home.objects["PersistentVolumeClaim", "demo-syncer"]["metadata"]["uid"]
    w.change(image="registry.example/diloco:2")
    w.change_pool(**pods(nodeSelector={"disk": "fast"}), env=[{"name": "A", "value": "1"}])
    if not together:
        w.run(10)
    w.change(suspend=False)
    w.run(60)
    assert w.status()["phase"] == "Training"
    assert w.status()["progress"]["step"] > step
    assert w.home.objects["PersistentVolumeClaim", "demo-syncer"]["metadata"]["uid"] == claim
    for item in [*w.home.of_kind("StatefulSet").values(), *w.home.of_kind("Deployment").values()]:
        pod = item["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == "registry.example/diloco:2"
        assert item["status"]["updatedReplicas"] == item["spec"]["replicas"]
    first = next(item for name, item in w.home.of_kind("StatefulSet").items() if "us-east" in name)
    assert first["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    assert {"name": "A", "value": "1"} in first["spec"]["template"]["spec"]["containers"][0]["env"]


def images(w: ClusterWorld) -> set[str]:
    """Of all containers."""
    workloads = [*w.home.of_kind("StatefulSet").values(), *w.home.of_kind("Deployment").values()]
    return {container["image"] for one in workloads for container in one["spec"]["template"]["spec"]["containers"]}


def test_an_image_that_is_taken_out_of_the_manifest_is_used_no_more() -> None:
    w = suspended()
    before = images(w)
    w.change_pool(image="registry.example/no-such-image:1")
    w.change(suspend=False)
    w.run(60)
    w.change_pool(image=None)
    w.change(suspend=True)
    w.run(90)
    w.change(suspend=False)
    w.run(60)
    assert images(w) == before
