"""A real API server accepts and refuses the same manifests as ``diloco``, and names the same field."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco.spec import SpecError, load_job, parse_job
from diloco.spec.reading.document import read_document
from diloco.spec.reading.load import job_from
from testbed.api_server.server import ApiServer
from tests.support.bad_manifests import CASES, PODS, SAME
from tests.support.job_manifests import GOOD_JOBS, changed

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(REPOSITORY.glob("examples/*/job.yaml"))
JOBS = "/apis/diloco.dev/v1alpha1/namespaces/default/dilocojobs"
APPLY = ("apply", "--dry-run=server", "--output=json", "--filename=-")


KNOWN_ONLY_TO_DILOCO = {
    # The API server compares no value with its default.
    "spec.data.holdoutFraction: has no use with spec.loop",
    "spec.training.optimizer: has no use with spec.loop",
    "spec.training.evaluation.sequences: has no use with spec.loop",
    # It does not count the accelerators in the limits.
    "spec.regions[0].pools[0].batchSize: 12 is not a multiple",
    # For the API server a null is a missing field, which has a default.
    "spec.sync: null",
    "spec.training.seed: null",
    "spec.sync.compression: null",
    "spec.model.arguments.layers[1].width: null",
    "spec.task.arguments.path: null",
    # A request is for one kind of object, at a path that names it.
    "apiVersion: ",
    "kind: ",
    "metadata: is missing",
    # Has no form in JSON.
    "spec.training.optimizer.learningRate: Infinity",
    # The model's parameters have names that only its code knows.
    "spec.training.optimizer.groups[0].match[1]: ",
}


@pytest.mark.core
def test_what_diloco_refuses_the_api_server_refuses_and_names_the_field(job_server: ApiServer) -> None:
    wrong = []
    for bad in CASES:
        if bad.line.startswith(tuple(KNOWN_ONLY_TO_DILOCO)):
            continue
        field, _, said = bad.line.partition(": ")
        manifest = changed(bad.changes)
        status, answer = job_server.request("POST", f"{JOBS}?dryRun=All&fieldValidation=Strict", manifest)
        words = (bad.at or field, said if bad.server == SAME else bad.server) if bad.server else ()
        if status < 400 or not all(word in answer["message"] for word in words):
            wrong.append((bad.line, words, answer.get("message")))
    assert wrong == []


KNOWN_ONLY_TO_A_NODE = {
    "podTemplate.spec.initContainers[0].image",
    "podTemplate.spec.volumes[0].emptyDir.medium",
    "podTemplate.spec.containers[0].volumeMounts[0].mountPath",
}


def test_pod_settings_that_diloco_refuses_make_no_pod(job_server: ApiServer) -> None:
    pods = "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict"
    wrong = {one.place for one in PODS if job_server.request("POST", pods, _pod(one.pool))[0] < 400}
    assert wrong == KNOWN_ONLY_TO_A_NODE


def _pod(pool: Mapping[str, Any]) -> dict[str, Any]:
    """A pod of its settings, without what the operator adds."""
    template = pool.get("podTemplate", {})
    (own,) = template.get("spec", {}).get("containers", [{}])
    given = {key: pool[key] for key in ("env", "resources") if key in pool}
    container = {"name": "learner", "image": "trainer:1", **own, **given}
    volumes = [{"name": mount["name"], "emptyDir": {}} for mount in own.get("volumeMounts", ())]
    spec = {**({"volumes": volumes} if volumes else {}), **template.get("spec", {}), "containers": [container]}
    return {"metadata": {"name": "pod", **template.get("metadata", {})}, "spec": spec}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_diloco_and_the_api_server_read_an_example_the_same(job_server: ApiServer, path: Path) -> None:
    returned = json.loads(job_server.kubectl(*APPLY, text=path.read_text(encoding="utf-8")).stdout)
    local = load_job(path)
    remote = job_from(returned)
    assert remote.metadata.name == local.metadata.name
    assert remote.spec == local.spec


@pytest.mark.parametrize("how", [["apply"], ["apply", "--server-side"], ["create"]], ids=" ".join)
@pytest.mark.parametrize("name", GOOD_JOBS)
def test_a_good_job_comes_back_with_defaults_as_the_same_job(job_server: ApiServer, name: str, how: list[str]) -> None:
    done = job_server.kubectl(*how, *APPLY[1:], text=json.dumps(GOOD_JOBS[name]))
    assert job_from(json.loads(done.stdout)).spec == job_from(GOOD_JOBS[name]).spec


def test_null_is_the_same_as_leaving_an_optional_field_out(job_server: ApiServer) -> None:
    nulls = {
        "spec.image": None,
        "spec.model.entrypoint": None,
        "spec.data.tokens": None,
        "spec.training.evaluation": {"everyTokens": None},
        "spec.sync": {"maxStalenessSteps": None, "grace": {"maximumSeconds": None}},
        "spec.regions.0.cluster": None,
        "spec.regions.0.pools.0.batchSize": None,
        "spec.activeDeadlineSeconds": None,
    }
    done = job_server.kubectl(*APPLY, text=json.dumps(changed(nulls)))
    assert job_from(json.loads(done.stdout)).spec == job_from(changed({})).spec == job_from(changed(nulls)).spec


@pytest.mark.parametrize(
    "scalar",
    [
        "2_000_000", "2e6", "1e-3", "1E3", "1e+3", ".5", "2.50", "1.", "0x1F", "+5", "-0", "12e", "1.2.3", "1:30",
        "2026-01-31", "yes", "Off", "n", "_1", "'017'", '"5"', "0a1b", "None", "9007199254740993", "- - x",
    ],
)  # fmt: skip
def test_a_value_is_read_by_kubectl_as_by_diloco(job_server: ApiServer, scalar: str) -> None:
    done = job_server.kubectl(*APPLY, text=_with_argument(scalar))
    read = _argument(read_document(_with_argument(scalar), "job.yaml"))
    # JSON has one kind of number, and an API server writes 1.0 as 1.
    assert json.dumps(_argument(json.loads(done.stdout))) == json.dumps(_whole(read))


@pytest.mark.parametrize("scalar", ["017", "0o17", "0b11", "-0x10", "1_0.5", "1_000_", "0_1", "00", "08", ".inf"])
def test_a_value_that_kubectl_reads_as_another_is_refused_by_diloco(scalar: str) -> None:
    with pytest.raises(SpecError, match="is not read as a number by every YAML parser"):
        parse_job(_with_argument(scalar))


def _with_argument(scalar: str) -> str:
    job = yaml.safe_dump(GOOD_JOBS["own-code"])
    return job.replace("layers: 3", f"layers:\n        {scalar}")


def _argument(document: Any) -> object:
    assert isinstance(document, Mapping)
    return document["spec"]["model"]["arguments"]["layers"]


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value
