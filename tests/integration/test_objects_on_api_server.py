"""The operator's objects on a real API server: accepted and returned unchanged, and admitted as restricted.

A field that the server returned in another form would look like drift at every reconcile, and be applied forever.
"""

import datetime as dt
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco.cli.main import execute
from diloco.spec import DiLoCoJob
from diloco_operator import names
from diloco_operator.decide.certificates import JobIdentity, certificates
from diloco_operator.decide.drift import differs
from diloco_operator.labels import FIELD_MANAGER
from diloco_operator.manifests.quantity import canonical
from diloco_operator.signing import RandomCertificateMaker
from testbed.api_server.server import ApiServer
from tests.support.made_objects import ALL_FIELDS, TWO_REGIONS, every_job, made, templates, with_pool

NAMESPACE = "restricted-objects"
JOBS = {
    name: job.model_copy(update={"metadata": job.metadata.model_copy(update={"namespace": NAMESPACE})})
    for name, job in {**every_job(), "small": with_pool({})}.items()
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


def differences(sent: Any, back: Any, place: str = "") -> list[str]:
    """The paths at which ``back`` does not contain ``sent`` exactly, lists in order."""
    if isinstance(sent, dict) and isinstance(back, dict):
        missing = [f"{place}.{key}: not given back" for key in sent if key not in back]
        return [
            *missing,
            *(found for key in sent if key in back for found in differences(sent[key], back[key], f"{place}.{key}")),
        ]
    if isinstance(sent, list) and isinstance(back, list) and len(sent) == len(back):
        pairs = enumerate(zip(sent, back, strict=True))
        return [*chain.from_iterable(differences(one, other, f"{place}[{i}]") for i, (one, other) in pairs)]
    return [] if sent == back and type(sent) is type(back) else [f"{place}: sent {sent!r}, given back {back!r}"]


def objects(name: str) -> tuple[dict[str, Any], ...]:
    """All objects, with real certificates, because the server reads them and warns of invalid ones."""
    job = JOBS[name]
    who = JobIdentity(name, NAMESPACE, names.stateful_sets(name, names.pools(job.spec)))
    return made(job, certificates=certificates(who, {}, dt.datetime.now(dt.UTC), RandomCertificateMaker()))


@pytest.mark.parametrize("name", JOBS)
def test_what_the_server_gives_back_is_what_was_sent(name: str, server: ApiServer) -> None:
    wanted = objects(name)
    for sent, back in zip(wanted, apply(server, *wanted), strict=True):
        assert differences(sent, back, f"{sent['kind']} {sent['metadata']['name']}") == []


@pytest.mark.parametrize("name", JOBS)
def test_applying_again_changes_nothing(name: str, server: ApiServer) -> None:
    wanted = objects(name)
    first, again = ([one["metadata"]["resourceVersion"] for one in apply(server, *wanted)] for _ in range(2))
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


QUANTITIES = [
    *("1", "0.5", "1000", "1000m", "1500m", "0.1", ".5", "1.", "+2", "0", "0Gi", "1024Mi", "0.5Gi", "1536Mi", "1023"),
    *("0.5Ki", "1500Mi", "1000M", "1e3", "12e2", "1E", "7Ei", "1Ki", "1025Ki", "123456789", "1e-3", "5e6", "1.5e3"),
]


def test_quantities_are_sent_in_the_form_that_the_server_keeps(server: ApiServer) -> None:
    pod = pods(JOBS["small"])[0]
    pod["metadata"]["name"] = "quantities"
    # The one field that takes any quantity at all.
    sent = {f"v{i}": canonical(written) for i, written in enumerate(QUANTITIES)}
    more = [{"name": name, "emptyDir": {"sizeLimit": size}} for name, size in sent.items()]
    pod["spec"] = {**pod["spec"], "volumes": [*pod["spec"]["volumes"], *more]}
    back = json.loads(server.kubectl("create", "--output=json", "--filename=-", text=json.dumps(pod)).stdout)
    kept = {one["name"]: one["emptyDir"]["sizeLimit"] for one in back["spec"]["volumes"] if one["name"] in sent}
    assert kept == sent


def stored(**storage: Any) -> dict[str, Any]:
    """The set of a pool whose learners have claims."""
    job = with_pool({"storage": {"size": "2Gi", **storage}})
    metadata = job.metadata.model_copy(update={"name": "stored", "namespace": NAMESPACE})
    (one,) = [one for one in made(job.model_copy(update={"metadata": metadata})) if one["kind"] == "StatefulSet"]
    return one


def test_of_a_learners_claims_the_policy_can_change_and_nothing_else(server: ApiServer) -> None:
    (before,) = apply(server, stored())
    assert differs(stored(), before) is None
    wanted = stored(whenDeleted="Retain", whenScaled="Delete")
    (after,) = apply(server, wanted)
    assert differs(wanted, after) is None
    assert differs(stored(), after) is not None
    assert after["spec"]["template"] == before["spec"]["template"], "no pod is restarted"
    # The definition of the job refuses it before; see test_crd_updates.
    owner = ("--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}")
    larger = json.dumps(stored(size="3Gi"))
    refused = server.kubectl("apply", *owner, "--filename=-", text=larger, check=False)
    assert "updates to statefulset spec for fields other than" in refused.stderr
