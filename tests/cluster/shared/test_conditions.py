"""Problems that keep learners from running become a condition with pool and cause, which clears once they are fixed.

The texts come from the scheduler, kubelet and the containers, so only a real cluster shows their form.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from diloco.spec.status.job import JobStatus
from testbed.kind.clusters import Cluster
from testbed.kind.commands import run
from testbed.kind.project_images import Images
from testbed.kind.waiting import wait_until
from tests.support.cluster_jobs import (
    BUSY_REASONS,
    ClusterJob,
    apply,
    condition,
    holds,
    manifest,
    pool,
    region,
)
from tests.support.job_manifests import pods

pytestmark = [pytest.mark.usefixtures("chart"), pytest.mark.timeout(900)]

LITTLE: dict[str, Any] = {"requests": {"cpu": "10m", "memory": "64Mi"}}
TEXT = {f"{number}.txt": f"the {number} quick brown foxes jump over {number} lazy dogs\n" * 200 for number in range(9)}


def said_of_all(*wanted: str) -> Callable[[JobStatus], bool]:
    """Whether Degraded names every one of these."""
    return lambda status: (
        holds(status, "Degraded") and all(text in condition(status, "Degraded").message for text in wanted)
    )


def trains(job: ClusterJob, *, ready: bool = True) -> JobStatus:
    """Wait until the learner of the pool ``fine`` does."""
    return job.wait_for(
        lambda now: (
            [one.training for each in now.regions for one in each.pools if one.name == "fine"] == [1]
            and (holds(now, "Ready") or not ready)
        ),
        "the one that can train does",
    )


def merges_advance(job: ClusterJob) -> None:
    before = job.wait_for(lambda status: status.progress is not None, "the first steps").progress
    assert before is not None
    job.wait_for(lambda now: now.progress is not None and now.progress.step > before.step, "merges advance")


def recovers(job: ClusterJob) -> None:
    """Wait until nothing is wrong any more, and no condition mentions the earlier problem; then delete the job."""
    assert condition(job.recovers(), "Degraded").reason in ("AsExpected", *BUSY_REASONS)
    job.kubectl("delete", "dilocojob", job.name)


@contextmanager
def labelled(cluster: Cluster, key: str) -> Iterator[None]:
    node = cluster.nodes[-1]
    cluster.kubectl("label", "node", node, f"{key}=yes")
    try:
        yield
    finally:
        cluster.kubectl("label", "node", node, f"{key}-")


@contextmanager
def tagged(cluster: Cluster, image: str, name: str) -> Iterator[None]:
    """Give an image another name on every node, as if it had been pulled."""
    nodes = cluster.nodes
    for node in nodes:
        images = ("docker", "exec", node, "ctr", "-n", "k8s.io", "images")
        full = next(one for one in run(*images, "list", "--quiet").split() if one.endswith(image))
        run(*images, "tag", full, name)
    try:
        yield
    finally:
        for node in nodes:
            run("docker", "exec", node, "ctr", "-n", "k8s.io", "images", "remove", name)


def test_pools_that_cannot_run_are_named_and_join_once_the_cause_is_gone(
    cluster: Cluster, namespace: str, images: Images
) -> None:
    label, image = f"example.com/{namespace}", f"registry.invalid/{namespace}:1"
    wanted = manifest(
        "nodes",
        region(
            "here",
            pool("fine"),
            pool("gpu", resources={**LITTLE, "limits": {"nvidia.com/gpu": 1}}),
            pool("far", **pods(nodeSelector={label: "yes"})),
            pool("unpulled", image=image),
            pool("small", resources={**LITTLE, "limits": {"memory": "64Mi"}}),
        ),
    )
    job = apply(cluster, namespace, wanted)
    nodes = len(cluster.nodes)
    available = f"0/{nodes} nodes are available: {nodes}"
    degraded = job.wait_for(
        said_of_all(
            f"1 of 1 learners of here/gpu unschedulable: {available} Insufficient nvidia.com/gpu",
            f"1 of 1 learners of here/far unschedulable: {available} node(s) didn't match Pod's node affinity/selector",
            f"1 of 1 learners of here/unpulled cannot pull the image: {image}: ",
            "1 of 1 learners of here/small out of memory: killed at its memory limit",
        ),
        "every pool's problem is reported",
    )
    assert "here/fine" not in condition(degraded, "Degraded").message
    # The most serious one.
    assert condition(degraded, "Degraded").reason == "OutOfMemory"
    trains(job)
    merges_advance(job)
    assert holds(job.status(), "Degraded")
    with labelled(cluster, label), tagged(cluster, images.trainer, image):
        pools = wanted["spec"]["regions"][0]["pools"]
        for place in (1, 4):
            pools[place] = {**pools[place], "resources": LITTLE}
        apply(cluster, namespace, wanted)
        job.all_train("here/fine/0", "here/gpu/0", "here/far/0", "here/unpulled/0", "here/small/0")
        recovers(job)


@contextmanager
def storage_class(cluster: Cluster, name: str) -> Iterator[None]:
    standard = cluster.get("storageclasses", "standard")
    kept = ("apiVersion", "kind", "provisioner", "reclaimPolicy", "volumeBindingMode")
    cluster.apply({key: standard[key] for key in kept} | {"metadata": {"name": name}})
    try:
        yield
    finally:
        cluster.kubectl("delete", "storageclass", name)


def config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def secret(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"key": "value"}}


def corpus(config_map_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A volume and its mount."""
    volume = {"name": "corpus", "configMap": {"name": config_map_name}}
    return volume, {"name": "corpus", "mountPath": "/corpus", "readOnly": True}


def test_what_a_job_refers_to_and_is_not_there_is_told_until_it_is(cluster: Cluster, namespace: str) -> None:
    there, mounted = corpus("corpus")
    empty, _ = corpus("unfilled")
    certificate = {"name": "license", "secret": {"secretName": "missing-license"}}
    token = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "missing-token", "key": "key"}}}
    cluster.apply(config_map("corpus", TEXT), config_map("unfilled", {"notes": "to be done"}), namespace=namespace)
    disks = f"disks-of-{namespace}"
    wanted = manifest(
        "inputs",
        region(
            "here",
            pool("fine", **pods(mounted, volumes=[there])),
            pool("token", env=[token], **pods(mounted, volumes=[there])),
            pool(
                "license",
                **pods(mounted, {"name": "license", "mountPath": "/license"}, volumes=[there, certificate]),
            ),
            pool("data", **pods(mounted, volumes=[empty])),
        ),
        data={"text": {"path": "/corpus"}},
    )
    wanted["spec"]["syncer"]["storage"]["className"] = disks
    job = apply(cluster, namespace, wanted)
    unmounted = 'MountVolume.SetUp failed for volume "license" : secret "missing-license" not found'
    learners = (
        '1 of 1 learners of here/token cannot be started: secret "missing-token" not found',
        f"1 of 1 learners of here/license cannot be started: {unmounted}",
        "1 of 1 learners of here/data stopped by a configuration error: data.text.path: no file in /corpus matches",
    )
    volume = f'claim inputs-syncer is pending: storageclass.storage.k8s.io "{disks}" not found'
    degraded = job.wait_for(said_of_all(volume, *learners), "everything that is missing is reported")
    assert condition(degraded, "Degraded").reason == "VolumePending"
    assert condition(degraded, "Ready").reason == "WaitingForSyncer"
    with storage_class(cluster, disks):
        trains(job, ready=False)
        status = job.wait_for(lambda status: volume not in condition(status, "Degraded").message, "the claim is bound")
        assert said_of_all(*learners)(status)
        assert condition(status, "Degraded").reason == "ConfigurationError"
        merges_advance(job)
        filled = config_map("unfilled", {"notes": "done", **TEXT})
        cluster.apply(filled, secret("missing-token"), secret("missing-license"), namespace=namespace)
        job.all_train("here/fine/0", "here/token/0", "here/license/0", "here/data/0")
        recovers(job)
        wait_until(
            lambda: disks not in cluster.kubectl("get", "persistentvolumes", "--output", "yaml"), "its volume goes"
        )


def test_a_learner_that_fails_before_it_can_join_is_given_up(cluster: Cluster, namespace: str) -> None:
    small = pool("small", resources={**LITTLE, "limits": {"memory": "64Mi"}})
    once = {"maxRestartsPerLearner": 1}
    job = apply(cluster, namespace, manifest("failing", region("here", pool("fine"), small), failurePolicy=once))
    status = job.wait_for(
        lambda status: [one.held for region in status.regions for one in region.pools] == [None, 1],
        "it is given up, and its pod held back",
    )
    assert status.regions[0].pools[1].given_up == (0,)
    assert holds(status, "Degraded", "LearnersGivenUp")
    assert job.pod("here/small/0").node == ""
    trains(job)
    merges_advance(job)
    job.set_pool(0, 1, resources=LITTLE)
    job.kubectl("annotate", "dilocojob", job.name, "diloco.dev/readmit=here/small/0")
    job.all_train("here/fine/0", "here/small/0")
    recovers(job)
