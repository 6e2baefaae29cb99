"""The objects of a job: complete, owned, labelled, in a safe order, and consistent with each other."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from diloco_operator import labels, names
from diloco_operator.manifests import Images, NoImageError, choose_images
from diloco_operator.names import PoolKey
from tests.support.made_objects import OPTIONS, UID, containers, every_job, made, of_kind, templates, with_pool

JOBS = {name: made(job) for name, job in every_job().items()}
OBJECTS = {f"{job}: {one['kind']} {one['metadata']['name']}": one for job, objects in JOBS.items() for one in objects}
TEMPLATES = {f"{job}: {name}": one for job, objects in JOBS.items() for name, one in templates(objects).items()}
EAST = PoolKey("east", "a")
RETAINED = "all-fields: PersistentVolumeClaim all-fields-syncer"
"""Its job says so."""


def matches(selector: Mapping[str, str], found: Mapping[str, str]) -> bool:
    return bool(selector) and selector.items() <= found.items()


@pytest.mark.parametrize("which", OBJECTS)
def test_every_object_goes_when_the_job_goes(which: str) -> None:
    job = {"apiVersion": "diloco.dev/v1alpha1", "kind": "DiLoCoJob", "name": which.partition(":")[0], "uid": UID}
    stays = which == RETAINED
    assert OBJECTS[which]["metadata"].get("ownerReferences", []) == ([] if stays else [{**job, "controller": True}])


@pytest.mark.parametrize("which", OBJECTS)
def test_every_object_is_found_by_what_the_operator_watches_for(which: str) -> None:
    own = OBJECTS[which]["metadata"]["labels"]
    assert f"{labels.MANAGED_BY}={own[labels.MANAGED_BY]}" == labels.OF_OPERATOR
    assert own[labels.JOB] == own[labels.INSTANCE] == which.partition(":")[0]


@pytest.mark.parametrize("job", JOBS)
def test_what_pods_mount_and_what_guards_them_is_there_before_them(job: str) -> None:
    kinds = [one["kind"] for one in JOBS[job]]
    first_workload = min(kinds.index("Deployment"), kinds.index("StatefulSet"))
    assert set(kinds[first_workload:]) == {"Deployment", "StatefulSet"}
    assert {"Secret", "ConfigMap", "PersistentVolumeClaim", "NetworkPolicy", "Service"} <= set(kinds[:first_workload])
    named = [(one["kind"], one["metadata"]["name"]) for one in JOBS[job]]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("which", TEMPLATES)
def test_everything_that_a_pod_mounts_is_made_unless_it_is_the_users(which: str) -> None:
    objects = JOBS[which.partition(":")[0]]
    sources = {volume["name"]: volume for volume in TEMPLATES[which]["spec"]["volumes"]}
    kind, _, name = which.partition(": ")[2].partition("/")
    for claim in of_kind(objects, kind)[name]["spec"].get("volumeClaimTemplates", ()):
        assert claim["metadata"]["name"] not in sources
        sources[claim["metadata"]["name"]] = claim
    assert sources["job"]["configMap"]["name"] in of_kind(objects, "ConfigMap")
    assert sources["tls"]["secret"]["secretName"] in of_kind(objects, "Secret")
    if "Deployment" in which:
        assert sources["state"]["persistentVolumeClaim"]["claimName"] in of_kind(objects, "PersistentVolumeClaim")
    assert names.authority_secret(which.partition(":")[0]) not in str(TEMPLATES[which])
    (container,) = containers(TEMPLATES[which])
    assert {mount["name"] for mount in container["volumeMounts"]} <= set(sources)


@pytest.mark.parametrize("job", every_job())
def test_where_the_platform_chooses_users_pods_name_none(job: str) -> None:
    ids = {"runAsUser", "runAsGroup", "fsGroup"}
    for template in templates(made(every_job()[job], replace(OPTIONS, assigns_users=True))).values():
        assert ids.isdisjoint(template["spec"]["securityContext"])
        assert template["spec"]["securityContext"]["runAsNonRoot"]
    for template in templates(JOBS[job]).values():
        assert ids <= template["spec"]["securityContext"].keys()


@pytest.mark.parametrize("assigned", [False, True])
def test_a_group_that_the_manifest_names_is_the_pods(assigned: bool) -> None:
    given = {"podTemplate": {"spec": {"securityContext": {"fsGroup": 2000}}}}
    pods = templates(made(with_pool(given), replace(OPTIONS, assigns_users=assigned)))
    assert pods["StatefulSet/small--east-a"]["spec"]["securityContext"]["fsGroup"] == 2000


@pytest.mark.parametrize("job", JOBS)
def test_selectors_match_the_pods_they_are_for_and_no_others(job: str) -> None:
    pods = {name: template["metadata"]["labels"] for name, template in templates(JOBS[job]).items()}
    for one in JOBS[job]:
        if "template" in one.get("spec", {}):
            own = f"{one['kind']}/{one['metadata']['name']}"
            selector = one["spec"]["selector"]["matchLabels"]
            assert [name for name, found in pods.items() if matches(selector, found)] == [own]
    learners = [name for name in pods if name.startswith("StatefulSet/")]
    for name, service in of_kind(JOBS[job], "Service").items():
        selected = [pod for pod, found in pods.items() if matches(service["spec"]["selector"], found)]
        assert selected == (learners if name == names.learners(job) else [f"Deployment/{names.syncer(job)}"])


@pytest.mark.parametrize("job", JOBS)
def test_services_lead_to_ports_that_their_pods_have(job: str) -> None:
    pods = templates(JOBS[job])
    for service in of_kind(JOBS[job], "Service").values():
        for template in pods.values():
            if matches(service["spec"]["selector"], template["metadata"]["labels"]):
                (container,) = containers(template)
                known = {port["name"]: port["containerPort"] for port in container["ports"]}
                assert all(known[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])


def argument(container: Mapping[str, Any], name: str) -> str:
    (found,) = [text.partition("=")[2] for text in container["args"] if text.startswith(f"--{name}=")]
    return str(found)


@pytest.mark.parametrize("which", TEMPLATES)
def test_files_named_in_arguments_are_in_mounted_volumes(which: str) -> None:
    (container,) = containers(TEMPLATES[which])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    for name in ("job", "directory", "tls-ca", "tls-cert", "tls-key"):
        path = argument(container, name)
        assert path in mounted or path.rpartition("/")[0] in mounted


@pytest.mark.parametrize("which", TEMPLATES)
def test_containers_cannot_write_outside_volumes_or_reach_the_api_server(which: str) -> None:
    assert TEMPLATES[which]["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in TEMPLATES[which]["spec"]
    assert all(one["securityContext"]["readOnlyRootFilesystem"] is True for one in containers(TEMPLATES[which]))


@pytest.mark.parametrize("job", JOBS)
def test_learners_reach_a_syncer_that_is_not_ready(job: str) -> None:
    # After a crash it takes merges back from them before it is.
    services = of_kind(JOBS[job], "Service").values()
    assert all(one["spec"]["publishNotReadyAddresses"] for one in services)


def test_an_exposed_syncer_shows_only_the_port_that_asks_for_a_certificate() -> None:
    services = of_kind(JOBS["all-fields"], "Service")
    exposed = services[names.exposed_syncer("all-fields")]
    assert exposed["spec"]["type"] == "LoadBalancer"
    assert [port["name"] for port in exposed["spec"]["ports"]] == ["sync"]
    assert exposed["metadata"]["annotations"]["balancer.example/scheme"] == "internal"
    assert services[names.syncer("all-fields")]["spec"]["type"] == "ClusterIP"
    assert names.exposed_syncer("two-regions") not in of_kind(JOBS["two-regions"], "Service")


@pytest.mark.parametrize(
    ("of_spec", "of_pool", "syncer", "learner"),
    [
        ("spec", "pool", "spec", "pool"),
        ("spec", None, "spec", "spec"),
        (None, "pool", "default", "pool"),
        (None, None, "default", "default"),
    ],
)
def test_the_manifests_image_comes_before_the_default(
    of_spec: str | None, of_pool: str | None, syncer: str, learner: str
) -> None:
    spec = with_pool({"image": of_pool} if of_pool else {}).spec.model_copy(update={"image": of_spec})
    assert choose_images(spec, "default") == Images(syncer=syncer, learners={EAST: learner})


def test_without_any_image_the_user_is_told_where_to_name_one() -> None:
    with pytest.raises(NoImageError, match=r"^spec\.image: is missing, and so is the image of pool east/a; set"):
        choose_images(with_pool({}).spec, None)
