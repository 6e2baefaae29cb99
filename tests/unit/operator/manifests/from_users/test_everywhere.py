"""Labels, annotations and pull secrets that a job gives all of its objects and pods."""

from dataclasses import replace
from typing import Any

import pytest

from diloco.spec import load_job
from diloco_operator import names
from diloco_operator.manifests import InvalidSpecError, Remote, Scale, all_children, choose_images
from diloco_operator.manifests.inputs import Inputs
from tests.support.made_objects import FAR_REGIONS, OPTIONS, live, made, placeholders, small_job, templates

EAST = {"name": "east", "pools": [{"name": "a", "storage": {}}]}
SAID: dict[str, Any] = {
    "labels": {"team": "red", "cost-center": "7"},
    "annotations": {"policy.example.com/owner": "red"},
    "imagePullSecrets": [{"name": "registry"}],
}


def marked(metadata: dict[str, Any]) -> bool:
    return all(metadata.get(field, {}).items() >= SAID[field].items() for field in ("labels", "annotations"))


def test_every_object_pod_and_claim_at_home_is_marked() -> None:
    objects = made(small_job(EAST, **SAID))
    assert objects
    for one in objects:
        assert marked(one["metadata"]), one["kind"]
        for template in one["spec"].get("volumeClaimTemplates", ()) if "spec" in one else ():
            assert marked(template["metadata"])
    for place, template in templates(objects).items():
        assert marked(template["metadata"]), place
        assert template["spec"]["imagePullSecrets"] == SAID["imagePullSecrets"]


def test_every_object_and_pod_in_another_cluster_is_marked() -> None:
    job = live(load_job(FAR_REGIONS), **{field: SAID[field] for field in ("labels", "annotations")})
    remotes = {
        name: Remote(namespace="far", home_id="home", endpoint="h:1")
        for name in {cluster for cluster in names.clusters(job.spec).values() if cluster}
    }
    scale = Scale(dict.fromkeys(names.pools(job.spec), 1), 1)
    inputs = Inputs(choose_images(job.spec, "default"), scale, placeholders(job), remotes)
    away = [one.body for one in all_children(job, OPTIONS, inputs) if one.cluster]
    assert away
    assert all(marked(one["metadata"]) for one in away)
    assert all(marked(template["metadata"]) for template in templates(tuple(away)).values())


def test_the_operators_own_labels_stay_and_cannot_be_said() -> None:
    plain, said = (made(small_job(EAST, **more)) for more in ({}, SAID))
    for one, other in zip(plain, said, strict=True):
        assert other["metadata"]["labels"].items() >= one["metadata"]["labels"].items()
    with pytest.raises(InvalidSpecError, match=r"spec\.labels\.diloco\.dev/job: is reserved"):
        made(small_job(EAST, labels={"diloco.dev/job": "other"}))


def test_a_pools_own_pull_secrets_come_first() -> None:
    pool = {"name": "a", "podTemplate": {"spec": {"imagePullSecrets": [{"name": "own"}, {"name": "registry"}]}}}
    found = templates(made(small_job({"name": "east", "pools": [pool]}, **SAID)))
    assert found["StatefulSet/small--east-a"]["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "registry"}]


def test_the_operators_pull_secrets_are_for_jobs_without_some() -> None:
    options = replace(OPTIONS, trainer_pull_secrets=("of-the-chart",))
    by_default, by_job = (templates(made(small_job(EAST, **more), options)) for more in ({}, SAID))
    for template in by_default.values():
        assert template["spec"]["imagePullSecrets"] == [{"name": "of-the-chart"}]
    for template in by_job.values():
        assert template["spec"]["imagePullSecrets"] == SAID["imagePullSecrets"]
