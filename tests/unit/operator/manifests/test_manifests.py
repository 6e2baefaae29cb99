"""The objects of a job: complete, owned, labelled, in a safe order, and consistent with each other."""

from collections.abc import Mapping
from typing import Any

import pytest

from diloco_operator import labels, names
from diloco_operator.manifests import Images, Inputs, NoImageError, ObservedImages, Scale, all_children, choose_images
from diloco_operator.names import PoolKey
from diloco_operator.options import OperatorOptions
from tests.support.made_objects import (
    OPTIONS,
    UID,
    containers,
    every_job,
    made,
    of_kind,
    placeholders,
    templates,
    with_pool,
)

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


def test_stateful_sets_name_the_service_that_governs_them() -> None:
    services = of_kind(JOBS["two-regions"], "Service")
    for one in of_kind(JOBS["two-regions"], "StatefulSet").values():
        assert services[one["spec"]["serviceName"]]["spec"]["clusterIP"] == "None"
        assert one["spec"]["podManagementPolicy"] == "Parallel"


def argument(container: Mapping[str, Any], name: str) -> str:
    (found,) = [text.partition("=")[2] for text in container["args"] if text.startswith(f"--{name}=")]
    return str(found)


def test_a_learner_is_told_who_it_is_by_its_pods_index() -> None:
    (container,) = containers(templates(made(with_pool({})))["StatefulSet/small--east-a"])
    assert container["command"] == ["diloco"]
    assert container["args"][0] == "learner"
    assert argument(container, "learner") == "east/a/$(POD_INDEX)"
    assert argument(container, "syncer") == "small-syncer.team.svc:29400"
    assert "--stay" in container["args"]
    (index,) = [one for one in container["env"] if one["name"] == "POD_INDEX"]
    assert index["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"


def test_the_syncer_listens_where_its_service_leads() -> None:
    (container,) = containers(templates(made(with_pool({})))["Deployment/small-syncer"])
    assert container["args"][0] == "syncer"
    assert argument(container, "listen") == "0.0.0.0:29400"
    assert argument(container, "http") == "0.0.0.0:8080"


@pytest.mark.parametrize("which", TEMPLATES)
def test_files_named_in_arguments_are_in_mounted_volumes(which: str) -> None:
    (container,) = containers(TEMPLATES[which])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    for name in ("job", "directory", "tls-ca", "tls-cert", "tls-key"):
        path = argument(container, name)
        assert path in mounted or path.rpartition("/")[0] in mounted


@pytest.mark.parametrize("which", TEMPLATES)
def test_probes_call_a_port_that_is_there_and_give_ten_minutes_to_start(which: str) -> None:
    (container,) = containers(TEMPLATES[which])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["http"] == 8080
    paths = {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    for probe, path in paths.items():
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600


@pytest.mark.parametrize(("kind", "seconds"), [("StatefulSet", 120), ("Deployment", 150)])
def test_a_pod_has_time_to_hand_in_and_what_ended_it_is_kept(kind: str, seconds: int) -> None:
    for which, template in TEMPLATES.items():
        if kind in which:
            assert template["spec"]["terminationGracePeriodSeconds"] == seconds
            assert [one["terminationMessagePolicy"] for one in containers(template)] == ["FallbackToLogsOnError"]


def test_two_syncers_never_share_the_volume() -> None:
    (deployment,) = of_kind(JOBS["two-regions"], "Deployment").values()
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_the_scale_is_the_callers() -> None:
    job = with_pool({"learners": 5})
    images = choose_images(job.spec, ObservedImages(), "image")
    for scale, learners, syncer in ((Scale({EAST: 2}, 1), 2, 1), (Scale({}, 0), 0, 0)):
        objects = tuple(one.body for one in all_children(job, OPTIONS, Inputs(images, scale, placeholders(job))))
        assert of_kind(objects, "StatefulSet")["small--east-a"]["spec"]["replicas"] == learners
        assert of_kind(objects, "Deployment")["small-syncer"]["spec"]["replicas"] == syncer


def test_an_exposed_syncer_shows_only_the_port_that_asks_for_a_certificate() -> None:
    services = of_kind(JOBS["all-fields"], "Service")
    exposed = services[names.exposed_syncer("all-fields")]
    assert exposed["spec"]["type"] == "LoadBalancer"
    assert [port["name"] for port in exposed["spec"]["ports"]] == ["sync"]
    assert exposed["metadata"]["annotations"] == {"balancer.example/scheme": "internal"}
    assert services[names.syncer("all-fields")]["spec"]["type"] == "ClusterIP"
    assert names.exposed_syncer("two-regions") not in of_kind(JOBS["two-regions"], "Service")


def images_of(spec_image: str | None, pool_image: str | None, running: str | None, default: str | None) -> Images:
    job = with_pool({"image": pool_image} if pool_image else {})
    spec = job.spec.model_copy(update={"image": spec_image})
    observed = ObservedImages(syncer=running, learners={EAST: running} if running else {})
    return choose_images(spec, observed, default)


@pytest.mark.parametrize(
    ("images", "syncer", "learner"),
    [
        (("spec", "pool", "running", "default"), "spec", "pool"),
        (("spec", None, "running", "default"), "spec", "spec"),
        ((None, "pool", "running", "default"), "pool", "pool"),
        ((None, None, "running", "default"), "running", "running"),
        ((None, None, None, "default"), "default", "default"),
        ((None, None, "running", None), "running", "running"),
    ],
)
def test_the_manifests_image_comes_first_then_what_runs_then_the_default(
    images: tuple[str | None, str | None, str | None, str | None], syncer: str, learner: str
) -> None:
    assert images_of(*images) == Images(syncer=syncer, learners={EAST: learner})


def test_a_syncer_without_its_own_image_takes_that_of_the_first_pool() -> None:
    images = choose_images(with_pool({}).spec, ObservedImages(learners={EAST: "running"}), None)
    assert images.syncer == "running"


def test_without_any_image_the_user_is_told_where_to_name_one() -> None:
    with pytest.raises(NoImageError, match=r"^spec\.image: is missing, and so is the image of pool east/a; set"):
        images_of(None, None, None, None)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"operator_namespace": ""}, "operator_namespace: is empty"),
        ({"poll_seconds": 0.0}, "poll_seconds: 0.0 is not above 0"),
        ({"resync_seconds": float("nan")}, "resync_seconds: nan is not above 0"),
    ],
)
def test_operator_options_that_cannot_be_are_refused_by_name(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        OperatorOptions(**{"operator_namespace": "diloco-system", **wrong})
