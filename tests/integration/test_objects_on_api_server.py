"""The operator's objects on a real API server: accepted, a second apply changes nothing, and admitted as restricted."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco.cli.main import execute
from diloco.spec import DiLoCoJob
from diloco_operator import names
from diloco_operator.decide.certificates import JobIdentity, certificates
from diloco_operator.decide.objects.child_changes import KEPT
from diloco_operator.labels import FIELD_MANAGER
from diloco_operator.signing import RandomCertificateMaker
from testbed.api_server.server import ApiServer
from tests.support.made_objects import ALL_FIELDS, TWO_REGIONS, every_job, made, templates, with_pool

NAMESPACE = "restricted-objects"
OF_USERS = {
    "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "4096 131072 67108864"}]},
    "initContainers": [{"name": "fetch", "image": "fetch:1", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}],
}
"""What a user may add to a pod, though it bears on its security."""
UNITS = {"processesPerNode": 2, "nodesPerLearner": 2, "batchSize": 4, "topologyKey": "rack"}
JOBS = {
    name: job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": NAMESPACE})})
    for name, job in {**every_job(), "small": with_pool({**UNITS, "podTemplate": {"spec": OF_USERS}})}.items()
}
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
# Objects that the pods of the job with every field refer to, and that admission requires.
CLUSTER_WIDE: list[dict[str, Any]] = [
    *(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
        for name in ("training", "merging")
    ),
    {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "accelerated"},
        "handler": "accelerated",
    },
]


def listed(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


@pytest.fixture(scope="module")
def server(job_server: ApiServer) -> ApiServer:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
    job_server.kubectl("apply", "--filename=-", text=listed([*CLUSTER_WIDE, namespace]))
    return job_server


def apply(server: ApiServer, *objects: dict[str, Any]) -> list[dict[str, Any]]:
    """Apply as the operator does; returns the server's objects in the same order."""
    owner = ("--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}")
    done = server.kubectl("apply", *owner, "--output=json", "--filename=-", text=listed(list(objects)))
    assert done.stderr == "", "the server warns"
    found = json.loads(done.stdout)
    return list(found["items"]) if found["kind"] == "List" else [found]


def objects(name: str) -> tuple[dict[str, Any], ...]:
    """All objects, with real certificates, because the server reads them and warns of invalid ones."""
    job = JOBS[name]
    who = JobIdentity(name, NAMESPACE, names.stateful_sets(name, names.pools(job.spec)))
    return made(job, certificates=certificates(who, {}, dt.datetime.now(dt.UTC), RandomCertificateMaker()))


@pytest.mark.parametrize("name", JOBS)
def test_applying_again_changes_nothing(name: str, server: ApiServer) -> None:
    """Of what the operator applies again; a claim is created once."""
    wanted = [one for one in objects(name) if one["kind"] not in KEPT]
    first, again = (
        {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["resourceVersion"] for one in made}
        for made in (apply(server, *wanted), apply(server, *wanted))
    )
    assert again == first


def claims_of_pod(one: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The volumes that a StatefulSet's controller adds to a pod."""
    templates = one["spec"].get("volumeClaimTemplates", ())
    names = [template["metadata"]["name"] for template in templates]
    return [{"name": own, "persistentVolumeClaim": {"claimName": f"{own}-{name}"}} for own in names]


def pods(job: DiLoCoJob) -> list[dict[str, Any]]:
    """A pod of each template, without the owner reference to a job that does not exist."""
    sets = {f"{one['kind']}/{one['metadata']['name']}": one for one in made(job)}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name.lower().replace("/", "-"),
                "namespace": NAMESPACE,
                "labels": template["metadata"]["labels"],
            },
            "spec": {
                **template["spec"],
                "volumes": [*template["spec"]["volumes"], *claims_of_pod(sets[name], name.lower().replace("/", "-"))],
            },
        }
        for name, template in templates(made(job)).items()
    ]


@pytest.mark.parametrize("name", JOBS)
def test_pods_are_admitted_where_restricted_is_enforced(name: str, server: ApiServer) -> None:
    assert apply(server, *pods(JOBS[name]))


def test_a_pod_that_is_not_restricted_is_turned_away_there(server: ApiServer) -> None:
    pod = pods(JOBS["small"])[0]
    pod["metadata"]["name"] = "loose"
    pod["spec"] = {**pod["spec"], "securityContext": {}}
    refused = server.kubectl("apply", "--filename=-", text=json.dumps(pod), check=False)
    assert "violates PodSecurity" in refused.stderr


@pytest.mark.parametrize("manifest", [TWO_REGIONS, ALL_FIELDS], ids=["two-regions", "all-fields"])
def test_what_is_rendered_can_be_tried_with_kubectl(
    manifest: Path, server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--image", "registry.example/diloco:1", "--namespace", NAMESPACE]
    assert execute(["render", str(manifest), *arguments]) == 0
    text = capsys.readouterr().out
    told = server.kubectl("apply", "--dry-run=server", "--filename=-", text=text).stdout.splitlines()
    assert len(told) == len(list(yaml.safe_load_all(text)))
