import json
from typing import Any

import pytest

from diloco.spec.reading.load import job_from
from diloco_operator import names
from diloco_operator.manifests import Inputs, Remote, Scale, all_children, choose_images
from tests.support.made_objects import (
    OPTIONS,
    containers,
    learner_pod,
    made,
    of_kind,
    placeholders,
    small_job,
    with_pool,
)

SET = "small--east-a"
TWO_NODES = {"learners": 3, "nodesPerLearner": 2}
RACK = {**TWO_NODES, "topologyKey": "rack"}
GPUS = {"resources": {"limits": {"vendor.example/gpu": 4}}, "batchSize": 4}


def of_pool(pool: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = of_kind(made(with_pool(pool)), "StatefulSet")[SET]
    return found


def container(pool: dict[str, Any]) -> dict[str, Any]:
    (found,) = containers(of_pool(pool)["spec"]["template"])
    return found


def shared(pod: dict[str, Any]) -> list[tuple[str, Any]]:
    """What is mounted at /dev/shm: the name and source of each."""
    (found,) = containers({"spec": pod})
    mounted = [one["name"] for one in found["volumeMounts"] if one["mountPath"].endswith("/dev/shm")]
    return [(one["name"], one["emptyDir"]) for one in pod["volumes"] if one["name"] in mounted]


def test_a_pool_has_a_pod_for_each_node_of_each_learner() -> None:
    assert of_pool(TWO_NODES)["spec"]["replicas"] == 6
    assert of_pool({"learners": 3})["spec"]["replicas"] == 3


def test_a_node_is_told_where_the_learners_first_one_is() -> None:
    found, whole = container(TWO_NODES), of_pool(TWO_NODES)
    (unit,) = [one for one in found["args"] if one.startswith("--unit=")]
    host, _, port = unit.removeprefix("--unit=").format(index=4).partition(":")
    assert host == f"{whole['metadata']['name']}-4.{whole['spec']['serviceName']}"
    assert int(port) in [one["containerPort"] for one in found["ports"]]
    assert "--index-of-pod" in found["args"]


@pytest.mark.parametrize("pool", [{}, {"processesPerNode": 2}])
def test_a_pod_that_is_a_whole_learner_has_the_plain_command(pool: dict[str, Any]) -> None:
    found, plain = container(pool), container({})
    assert (found["args"], found["ports"]) == (plain["args"], plain["ports"])


def test_pods_of_several_processes_have_shared_memory_for_each() -> None:
    assert shared(learner_pod(with_pool({}))) == []
    two, four = (shared(learner_pod(with_pool(one))) for one in ({"processesPerNode": 2}, GPUS))
    assert two == [("shared-memory", {"medium": "Memory", "sizeLimit": "512Mi"})]
    assert four == [("shared-memory", {"medium": "Memory", "sizeLimit": "1024Mi"})]
    assert shared(learner_pod(with_pool(TWO_NODES)))


@pytest.mark.parametrize("path", ["/dev/shm", "//dev/shm"])
def test_shared_memory_of_the_users_replaces_ours(path: str) -> None:
    own = {
        "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}],
        "containers": [{"name": "learner", "volumeMounts": [{"name": "dshm", "mountPath": path}]}],
    }
    pod = learner_pod(with_pool({"processesPerNode": 2, "podTemplate": {"spec": own}}))
    assert shared(pod) == [("dshm", {"medium": "Memory"})]


def test_each_process_of_a_pod_has_a_request() -> None:
    found = container({"processesPerNode": 2, "resources": {"limits": {"memory": "3Gi"}}})["resources"]
    assert found["limits"] == {"memory": "3Gi"}
    assert found["requests"]["cpu"] == "200m"
    assert "memory" not in found["requests"]
    assert container({"processesPerNode": 2})["resources"]["requests"]["memory"] == "512Mi"
    assert container(TWO_NODES)["resources"] == container({})["resources"]


def test_pods_go_where_others_of_the_pool_are_as_the_user_requires_more() -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    own = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"cache": "near"}}}
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": []}}, "podAffinity": {required: [own]}}
    found = of_pool({**RACK, "podTemplate": {"spec": {"affinity": affinity}}})["spec"]["template"]
    assert found["spec"]["affinity"]["nodeAffinity"] == affinity["nodeAffinity"]
    users, ours = found["spec"]["affinity"]["podAffinity"][required]
    assert (users, ours["topologyKey"]) == (own, "rack")
    pool = ours["labelSelector"]["matchLabels"]
    assert pool.items() <= found["metadata"]["labels"].items()
    assert pool["diloco.dev/pool"] == "a"
    assert "podAffinity" not in of_pool(TWO_NODES)["spec"]["template"]["spec"]["affinity"]


def test_a_learners_pods_are_not_spread_over_zones() -> None:
    assert "topology.kubernetes.io/zone" in str(learner_pod(with_pool({"processesPerNode": 2})))
    found = learner_pod(with_pool(TWO_NODES))
    assert "topology.kubernetes.io/zone" not in str(found)
    assert found["topologySpreadConstraints"] == learner_pod(with_pool({}))["topologySpreadConstraints"]


def test_a_cluster_that_is_not_told_the_limits_is_told_the_processes() -> None:
    far = {"cluster": {"kubeconfigSecretRef": {"name": "far"}}}
    pools = [{"name": "a", **GPUS}, {"name": "b", **GPUS, "processesPerNode": 1}, {"name": "c"}]
    expose = {"expose": {"type": "NodePort", "host": "192.0.2.1"}}
    job = small_job({"name": "east", "pools": pools, **far}, syncer=expose)
    scale, images = Scale({}, 1), choose_images(job.spec, "default:1")
    inputs = Inputs(images, scale, placeholders(job), {"far": Remote("theirs", "home-1")})
    objects = tuple(one.body for one in all_children(job, OPTIONS, inputs) if one.cluster)
    (told,) = of_kind(objects, "ConfigMap").values()
    read = names.pools(job_from(json.loads(told["data"]["job.json"])).spec)
    assert [(pool.resources, pool.processes) for pool in read.values()] == [(None, 4), (None, 1), (None, 1)]
