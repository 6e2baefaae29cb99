"""Changes to a suspended job apply to its pods when it resumes, and its model stays."""

import pytest

from testbed.virtual_cluster.cluster_world import ClusterWorld


def suspended() -> ClusterWorld:
    world = ClusterWorld()
    world.run(60)
    world.change(suspend=True)
    world.run(90)
    assert world.condition("Suspended")["status"] == "True"
    return world


@pytest.mark.parametrize("together", [False, True])
def test_another_image_and_placement_are_those_of_the_resumed_pods(*, together: bool) -> None:
    w = suspended()
    step, claim = w.status()["progress"]["step"], w.of_kind("PersistentVolumeClaim")["demo-syncer"]["metadata"]["uid"]
    w.change(image="registry.example/diloco:2")
    w.change_pool(nodeSelector={"disk": "fast"}, env=[{"name": "A", "value": "1"}])
    if not together:
        w.run(10)
    w.change(suspend=False)
    w.run(60)
    assert w.status()["phase"] == "Training"
    assert w.status()["progress"]["step"] > step
    assert w.of_kind("PersistentVolumeClaim")["demo-syncer"]["metadata"]["uid"] == claim
    for item in [*w.of_kind("StatefulSet").values(), *w.of_kind("Deployment").values()]:
        pod = item["spec"]["template"]["spec"]
        assert pod["containers"][0]["image"] == "registry.example/diloco:2"
        assert item["status"]["updatedReplicas"] == item["spec"]["replicas"]
    first = next(item for name, item in w.of_kind("StatefulSet").items() if "us-east" in name)
    assert first["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "fast"}
    assert {"name": "A", "value": "1"} in first["spec"]["template"]["spec"]["containers"][0]["env"]
