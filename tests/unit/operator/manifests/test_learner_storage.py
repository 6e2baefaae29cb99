"""The claims of learners: what has the StatefulSet's controller make them, and what stays as it was without them."""

import json
from typing import Any

import pytest

from diloco.spec.reading.load import job_from
from diloco_operator import labels
from diloco_operator.manifests.inputs import Manifest
from tests.support.made_objects import made, of_kind, with_pool
from tests.unit.operator.manifests.test_abroad import FAR, job, region, within

SET = "small--east-a"
STORAGE = {"size": "2Gi", "className": "fast", "whenDeleted": "Retain"}


def set_of(**pool: Any) -> Manifest:
    found: Manifest = of_kind(made(with_pool(pool)), "StatefulSet")[SET]
    return found


def volumes(one: Manifest) -> dict[str, Any]:
    return {volume["name"]: volume for volume in one["spec"]["template"]["spec"]["volumes"]}


def test_the_claim_is_mounted_where_the_learner_keeps_its_state() -> None:
    one = set_of(storage={})
    (container,) = one["spec"]["template"]["spec"]["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "state"]
    assert f"--directory={mount['mountPath']}" in container["args"]
    assert "state" not in volumes(one), "the controller would have two of that name"
    # Written by a user that is not root, on a volume whose root belongs to root.
    assert one["spec"]["template"]["spec"]["securityContext"]["fsGroup"] == 10001


def test_without_storage_there_is_an_empty_directory_and_no_claim() -> None:
    one = set_of()
    assert "emptyDir" in volumes(one)["state"]
    assert {"persistentVolumeClaimRetentionPolicy", "volumeClaimTemplates"}.isdisjoint(one["spec"])


def test_the_default_class_is_left_to_the_cluster() -> None:
    (claim,) = set_of(storage={"accessMode": "ReadWriteMany"})["spec"]["volumeClaimTemplates"]
    assert claim["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "10Gi"}}}


def test_the_operator_watches_no_claim_of_a_learner() -> None:
    one = set_of(storage={})
    # The controller gives claims the labels of the set's selector, by which a user finds them.
    selector = one["spec"]["selector"]["matchLabels"]
    assert selector[labels.JOB] == "small"
    assert labels.MANAGED_BY not in selector
    assert "labels" not in one["spec"]["volumeClaimTemplates"][0]["metadata"]


def test_in_another_cluster_claims_say_whose_they_are() -> None:
    spread = job(region("far", FAR, storage=STORAGE))
    (one,) = [one for one in within(FAR, spread) if one["kind"] == "StatefulSet"]
    (claim,) = one["spec"]["volumeClaimTemplates"]
    own = claim["metadata"]["labels"]
    assert {labels.HOME, labels.HOME_NAMESPACE, labels.JOB_UID, labels.JOB} <= own.keys()
    assert own.items() <= one["metadata"]["labels"].items()
    assert one["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"


@pytest.mark.parametrize("cluster", ["", FAR])
def test_no_process_is_told_of_claims(cluster: str) -> None:
    spread = job(region("near", storage=STORAGE), region("far", FAR, storage=STORAGE))
    (found,) = [one for one in within(cluster, spread) if one["kind"] == "ConfigMap"]
    read = job_from(json.loads(found["data"]["job.json"]))
    assert [pool.storage for one in read.spec.regions for pool in one.pools] == [None, None]
