import json
from dataclasses import replace
from typing import Any

import pytest

from diloco.spec import DiLoCoJob
from diloco.spec.placement import Pool
from diloco.spec.reading.load import job_from
from diloco_operator import labels, names
from diloco_operator.manifests import Inputs, Placed, Remote, Scale, abroad, all_children, choose_images
from diloco_operator.manifests.documents import PASSED_TO_PODS, USED_BY_CLAIMS, USED_BY_OPERATOR, USED_BY_SYNCER
from diloco_operator.names import PoolKey
from tests.support.made_objects import OPTIONS, UID, live, of_kind, placeholders, small_job

FAR, OTHER = "far-kubeconfig", "other-kubeconfig"
REMOTES = {FAR: Remote("theirs", "home-1", "203.0.113.7:31234"), OTHER: Remote("elsewhere", "home-1")}
OWNER = {"diloco.dev/job-uid": UID, "diloco.dev/home": "home-1", "diloco.dev/home-namespace": "team"}
SECRET_OF_NEAR = "near-registry"  # its name


def region(name: str, secret: str = "", **pool: Any) -> dict[str, Any]:
    where = {"cluster": {"kubeconfigSecretRef": {"name": secret}}} if secret else {}
    return {"name": name, "pools": [{"name": "a", "learners": 2, **pool}], **where}


def job(*regions: dict[str, Any], **spec: Any) -> DiLoCoJob:
    expose = {"type": "NodePort", "host": "192.0.2.1", "annotations": {"balancer": "internal"}}
    return small_job(*regions, **{"syncer": {"expose": expose}, **spec})


NEAR = region(
    "near",
    image="registry.near/diloco:1",
    env=[{"name": "NEAR_ONLY", "valueFrom": {"secretKeyRef": {"name": SECRET_OF_NEAR, "key": "x"}}}],
    podTemplate={
        "metadata": {"annotations": {"near": "annotated"}},
        "spec": {"nodeSelector": {"zone": "near-zone"}, "imagePullSecrets": [{"name": SECRET_OF_NEAR}]},
    },
)
SPREAD = job(region("far", FAR, batchSize=4), NEAR, region("farther", FAR), region("other", OTHER), image="common:1")


def placed(which: DiLoCoJob, remotes: dict[str, Remote] | None = None) -> tuple[Placed, ...]:
    scale = Scale({key: pool.learners for key, pool in names.pools(which.spec).items()}, 1)
    images = choose_images(which.spec, "default:1")
    given = REMOTES if remotes is None else remotes
    return all_children(which, OPTIONS, Inputs(images, scale, placeholders(which), given))


def within(cluster: str, which: DiLoCoJob = SPREAD) -> tuple[dict[str, Any], ...]:
    return tuple(one.body for one in placed(which) if one.cluster == cluster)


def test_a_cluster_whose_platform_chooses_users_gets_pods_that_name_none() -> None:
    remotes = {FAR: replace(REMOTES[FAR], assigns_users=True), OTHER: REMOTES[OTHER]}
    contexts = {
        one.body["metadata"]["name"]: (one.cluster, one.body["spec"]["template"]["spec"]["securityContext"])
        for one in placed(SPREAD, remotes)
        if one.body["kind"] in ("StatefulSet", "Deployment")
    }
    assert {cluster for cluster, _ in contexts.values()} == {"", FAR, OTHER}
    for name, (cluster, context) in contexts.items():
        assert ("fsGroup" in context) == ("runAsUser" in context) == (cluster != FAR), name


def test_a_cluster_gets_its_regions_and_one_of_each_object_they_share() -> None:
    assert [(one["kind"], one["metadata"]["name"]) for one in within(FAR)] == [
        ("Secret", "small--far-a-tls"),
        ("Secret", "small--farther-a-tls"),
        ("ConfigMap", "small-job"),
        ("NetworkPolicy", "small-learners"),
        ("Service", "small-learners"),
        ("StatefulSet", "small--far-a"),
        ("StatefulSet", "small--farther-a"),
    ]
    assert {one["kind"] for one in within(FAR)} == abroad.KINDS
    assert {one["kind"] for one in within("")} == {
        *("Secret", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy", "Service", "Deployment", "StatefulSet")
    }
    assert list(of_kind(within(""), "StatefulSet")) == ["small--near-a"]


def test_without_a_cluster_home_has_the_same_objects() -> None:
    assert [one.body for one in placed(SPREAD, {})] == list(within(""))


ABROAD = {
    f"{one.cluster} {one.body['kind']} {one.body['metadata']['name']}": one.body
    for one in placed(SPREAD)
    if one.cluster
}


@pytest.mark.parametrize("which", ABROAD)
def test_objects_elsewhere_say_whose_they_are_and_have_no_owner(which: str) -> None:
    one = ABROAD[which]
    assert "ownerReferences" not in one["metadata"]
    assert one["metadata"]["namespace"] in ("theirs", "elsewhere")
    assert OWNER.items() <= one["metadata"]["labels"].items()
    assert labels.belongs(one["metadata"]["labels"], UID)
    if one["kind"] == "StatefulSet":
        pods = one["spec"]["template"]["metadata"]["labels"]
        assert OWNER.items() <= pods.items()
        assert one["spec"]["selector"]["matchLabels"].items() <= pods.items()


def test_nothing_belongs_to_a_job_without_its_uid() -> None:
    assert not labels.belongs({labels.JOB: "small"}, UID)
    assert not labels.belongs({labels.JOB_UID: "another"}, UID)
    assert not labels.belongs(None, UID)


def test_selectors_elsewhere_leave_out_a_job_of_the_same_name() -> None:
    theirs = {**labels.of_pool("small", PoolKey("far", "a")), labels.JOB_UID: "another"}
    (policy,), (service,) = of_kind(within(FAR), "NetworkPolicy").values(), of_kind(within(FAR), "Service").values()
    chosen = [policy["spec"]["podSelector"]["matchLabels"], service["spec"]["selector"]]
    chosen += [one["spec"]["selector"]["matchLabels"] for one in of_kind(within(FAR), "StatefulSet").values()]
    for selector in chosen:
        assert not selector.items() <= theirs.items()
        assert selector[labels.JOB_UID] == UID


def test_the_manifest_elsewhere_says_nothing_of_other_pods_or_secrets() -> None:
    (found,) = of_kind(within(FAR), "ConfigMap").values()
    text = str(found)
    for secret in (FAR, OTHER, SECRET_OF_NEAR, "registry.near", "near-zone", "NEAR_ONLY", "annotated", "common:1"):
        assert secret not in text
    assert "balancer" not in text
    assert found["data"]["endpoint"] == "203.0.113.7:31234"


def test_the_manifest_elsewhere_is_a_job_with_the_same_learners() -> None:
    (found,) = of_kind(within(FAR), "ConfigMap").values()
    read = job_from(json.loads(found["data"]["job.json"]))
    assert read.spec.learner_ids == SPREAD.spec.learner_ids
    sizes = [pool.batch_size for pool in names.pools(read.spec).values()]
    assert sizes == [pool.batch_size for pool in names.pools(SPREAD.spec).values()] == [4, None, None, None]
    assert (read.spec.training, read.spec.sync, read.spec.data) == (
        *(SPREAD.spec.training, SPREAD.spec.sync, SPREAD.spec.data),
    )


def test_every_field_of_a_pool_is_for_somebody() -> None:
    processes = {"name", "learners", "minimum_learners", "excluded_indices", "batch_size"}
    processes |= {"processes_per_node", "nodes_per_learner", "parallelism"}
    assert set(Pool.model_fields) == PASSED_TO_PODS | USED_BY_CLAIMS | USED_BY_OPERATOR | USED_BY_SYNCER | processes


def test_the_authority_and_the_syncers_key_stay_at_home() -> None:
    for cluster in (FAR, OTHER):
        secrets = of_kind(within(cluster), "Secret")
        assert all(one["type"] == "kubernetes.io/tls" for one in secrets.values())
        assert all(set(one["data"]) == {"ca.crt", "tls.crt", "tls.key"} for one in secrets.values())
        assert names.syncer_secret("small") not in secrets


def test_the_policy_elsewhere_admits_no_namespace_for_its_name() -> None:
    (policy,) = of_kind(within(FAR), "NetworkPolicy").values()
    assert OPTIONS.operator_namespace not in str(policy)
    assert labels.MONITORING in str(policy)


def test_a_syncer_without_an_image_has_that_of_a_pool_at_home() -> None:
    away_first = job(region("far", FAR, image="far:1"), NEAR)
    assert choose_images(away_first.spec, None).syncer == "registry.near/diloco:1"
    own = away_first.spec.syncer.model_copy(update={"image": "syncer:1"})
    assert choose_images(live(away_first, syncer=own).spec, None).syncer == "syncer:1"
    only_away = job(region("far", FAR, image="far:1"))
    assert choose_images(only_away.spec, None).syncer == "far:1"


def test_two_keys_of_one_secret_are_two_clusters() -> None:
    two = job(region("far", FAR), region("near"), region("other", FAR))
    assert names.clusters(two.spec) == {"far": FAR, "near": "", "other": FAR}
    spec = two.model_dump(mode="json", by_alias=True)["spec"]
    spec["regions"][2]["cluster"]["kubeconfigSecretRef"]["key"] = "second"
    assert names.clusters(job(**spec).spec)["other"] == f"{FAR}/second"
