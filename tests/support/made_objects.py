"""Objects as the operator builds them from a manifest, and access to their parts."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diloco.spec import DiLoCoJob, load_job
from diloco.spec.reading.load import job_from
from diloco_operator import names
from diloco_operator.manifests import Certificates, Inputs, Scale, all_children, choose_images
from diloco_operator.options import OperatorOptions
from tests.support.golden import GOLDEN

REPOSITORY = Path(__file__).resolve().parents[2]
TWO_REGIONS = REPOSITORY / "examples" / "two-regions" / "job.yaml"
ALL_FIELDS = GOLDEN / "all-fields" / "job.yaml"
FAR_REGIONS = GOLDEN / "far-regions" / "job.yaml"

OPTIONS = OperatorOptions(operator_namespace="diloco-system", trainer_image="registry.example/diloco:default")
UID = "0d1c0c0e-0000-4000-8000-000000000001"


def live(job: DiLoCoJob, **changes: Any) -> DiLoCoJob:
    """The job as an API server has it: with a uid. ``changes`` replace fields of its spec."""
    spec = job.spec.model_copy(update=changes)
    return job.model_copy(update={"spec": spec, "metadata": job.metadata.model_copy(update={"uid": UID})})


def small_job(*regions: dict[str, Any], **spec: Any) -> DiLoCoJob:
    """A job with a uid, of these regions, whose spec has these fields too."""
    return job_from(
        {
            "apiVersion": "diloco.dev/v1alpha1",
            "kind": "DiLoCoJob",
            "metadata": {"name": "small", "namespace": "team", "uid": UID},
            "spec": {
                "model": {"builtin": {"preset": "pico"}},
                "data": {"text": {}},
                "training": {"tokens": 1000, "sequenceLength": 16, "batchSize": 2},
                "regions": list(regions),
                **spec,
            },
        }
    )


def with_pool(pool: Mapping[str, Any]) -> DiLoCoJob:
    """A small job whose only pool has these fields too."""
    return small_job({"name": "east", "pools": [{"name": "a", **pool}]})


def with_syncer(fields: Mapping[str, Any]) -> DiLoCoJob:
    """The same small job, whose syncer has these fields."""
    job = with_pool({})
    return live(job, syncer=type(job.spec.syncer).model_validate(fields))


def made(
    job: DiLoCoJob, options: OperatorOptions = OPTIONS, certificates: Certificates | None = None
) -> tuple[dict[str, Any], ...]:
    """Every object that the operator makes for ``job`` while it runs."""
    running = 0 if job.spec.suspend else 1
    scale = Scale({key: pool.learners * running for key, pool in names.pools(job.spec).items()}, running)
    images = choose_images(job.spec, options.trainer_image)
    placed = all_children(job, options, Inputs(images, scale, certificates or placeholders(job)))
    return tuple(one.body for one in placed)


def placeholders(job: DiLoCoJob) -> Certificates:
    """Data in place of certificates; valid base64 with arbitrary content."""
    name = job.metadata.name
    held = dict.fromkeys(("ca.crt", "tls.crt", "tls.key"), "eA==")
    sets = names.stateful_sets(name, names.pools(job.spec)).values()
    leafs = [names.syncer_secret(name), *map(names.learner_secret, sets)]
    return Certificates(
        {names.authority_secret(name): {"ca.crt": "eA==", "ca.key": "eA=="}} | dict.fromkeys(leafs, held)
    )


def every_job() -> dict[str, DiLoCoJob]:
    """The jobs that have golden files."""
    return {"two-regions": live(load_job(TWO_REGIONS)), "all-fields": live(load_job(ALL_FIELDS))}


def of_kind(objects: tuple[dict[str, Any], ...], kind: str) -> dict[str, dict[str, Any]]:
    """The objects of a kind, by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def templates(objects: tuple[dict[str, Any], ...]) -> dict[str, dict[str, Any]]:
    """Every pod template, by kind and name of what it belongs to."""
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["spec"]["template"]
        for one in objects
        if "template" in one.get("spec", {})
    }


def learner_pod(job: DiLoCoJob) -> dict[str, Any]:
    """The spec of the learners' pods of a small job."""
    spec: dict[str, Any] = templates(made(job))["StatefulSet/small--east-a"]["spec"]
    return spec


def containers(template: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The containers of a pod template."""
    yield from template["spec"]["containers"]
