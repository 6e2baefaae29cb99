"""``diloco render``: what the operator would apply for a job, without a cluster."""

import importlib.util
import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diloco.runtime.yaml_text import yaml_documents
from diloco.spec import DiLoCoJob, load_job
from diloco.spec.reading.load import located
from diloco.spec.words import listed

if TYPE_CHECKING:
    from diloco_operator.manifests import Certificates

Built = dict[str, list[dict[str, Any]]]
"""Objects by the cluster that they are applied in; the empty name is home's."""
HOME = "home"
"""What `--cluster` calls the operator's own cluster."""
IN_CLUSTER = "diloco.dev/in-cluster"
"""Annotation of an object of another cluster in a list with objects of several. It is not applied."""
_PLACEHOLDER = "(made by the operator)"
_ENDPOINT = "(host:port of the syncer, once it is known)"
_HOME_ID, _JOB_UID = "ID-OF-HOME", "UID-OF-JOB"
"""Values of labels, so they have no brackets."""
_HEADER = """\
# What the operator applies for job {job} in namespace {namespace}. Each object also gets an owner reference to the job.
# Secrets hold placeholders here: the operator creates and renews certificates and keys itself.
"""
_HEADER_ABROAD = """\
# What the operator applies in cluster {cluster} for region {regions}, in the namespace that its kubeconfig names.
# In place of an owner reference objects have labels with the home's id and the job's uid, here {home} and {uid}.
"""


class RenderError(ValueError):
    """No objects can be made from a valid manifest; the text says why, one line per problem."""


class Format(StrEnum):
    """How objects are printed."""

    YAML = "yaml"
    JSON = "json"


def render(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The manifest, a YAML file.", show_default=False)],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace. Default: the manifest's.")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", help="Trainer image for a manifest that names none, as the operator's default."),
    ] = None,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="yaml: one document per object; json: one List.")
    ] = Format.YAML,
    operator_namespace: Annotated[
        str, typer.Option("--operator-namespace", help="Namespace of the operator; network policies admit it.")
    ] = "diloco-system",
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="Only this cluster: home, or the Secret with its kubeconfig (SECRET or SECRET/KEY).",
        ),
    ] = None,
) -> None:
    """Print the objects that the operator would create for a manifest. Nothing is sent anywhere.

    If regions are in other clusters, home's objects come first, then those of
    each other cluster after a comment with its name. In JSON all are in one
    list, and those of other clusters have its name in the annotation
    diloco.dev/in-cluster. With --cluster only those of one cluster are
    printed, without the annotation.

    What a manifest does not say is a placeholder: certificates, the syncer's
    address, ids in labels. Objects of other clusters have no namespace here:
    it is that of the kubeconfig.

    \b
    Examples:
      diloco render job.yaml --image registry.example/diloco:1
      diloco render job.yaml --image registry.example/diloco:1 | kubectl apply --dry-run=server -f -
      diloco render job.yaml --cluster west | kubectl apply --context west -n learners --dry-run=server -f -
    """
    manifest = load_job(job)
    if namespace is not None:
        metadata = {"name": manifest.metadata.name, "namespace": namespace}
        # Checked again, as a namespace has its own rules.
        manifest = manifest.model_copy(update={"metadata": _checked(metadata)})
    built = _built(manifest, job, image, operator_namespace)
    chosen = built if cluster is None else _only(built, cluster)
    if output is Format.JSON:
        items = [one if cluster else _marked(one, where) for where, objects in chosen.items() for one in objects]
        typer.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2, ensure_ascii=False))
        return
    for where, objects in chosen.items():
        typer.echo(_header(manifest, where), nl=False)
        typer.echo(yaml_documents(objects), nl=False)


def check_for_operator(job: DiLoCoJob, file: Path) -> None:
    """Check the fields that only the operator reads: pod templates, volumes, variables.

    Skipped where the operator is not installed, as in the learners' image.

    Raises:
        SpecError: The operator would refuse the job; the text says why, one line per problem.
    """
    if importlib.util.find_spec("diloco_operator") is not None:
        # The operator may have a default image: none is no mistake of the manifest's.
        _built(job, file, "any", "any")


def _checked(metadata: dict[str, str]) -> Any:
    from pydantic import ValidationError

    from diloco.spec.job import Metadata

    try:
        return Metadata.model_validate(metadata)
    except ValidationError:
        raise RenderError(
            f"--namespace: {metadata['namespace']} is not a namespace; use a name of lower-case letters, digits and "
            "inner hyphens, at most 63 characters"
        ) from None


def _only(built: Built, cluster: str) -> Built:
    """What is applied in the cluster of this name.

    Raises:
        RenderError: no region is there.
    """
    from diloco_operator.cluster_state import cluster_name

    # SECRET/KEY can also name the default key, so that a Secret may be called home.
    wanted = "" if cluster == HOME else cluster_name(*cluster.split("/", 1))
    if wanted in built:
        return {wanted: built[wanted]}
    raise RenderError(f"--cluster: no region is in {cluster}; use {listed(one or HOME for one in built)}")


def _header(job: DiLoCoJob, cluster: str) -> str:
    from diloco_operator import names

    if not cluster:
        return _HEADER.format(job=job.metadata.name, namespace=job.metadata.namespace)
    there = listed((region for region, where in names.clusters(job.spec).items() if where == cluster), "and")
    return _HEADER_ABROAD.format(cluster=cluster, regions=there, home=_HOME_ID, uid=_JOB_UID)


def _marked(made: dict[str, Any], cluster: str) -> dict[str, Any]:
    if not cluster:
        return made
    annotations = {**made["metadata"].get("annotations", {}), IN_CLUSTER: cluster}
    return {**made, "metadata": {**made["metadata"], "annotations": annotations}}


def _built(job: DiLoCoJob, file: Path, image: str | None, operator_namespace: str) -> Built:
    """The objects by cluster, home's first.

    Raises:
        RenderError, SpecError: the operator would refuse the job.
    """
    # Imported here, as no other command needs them.
    from diloco_operator import names
    from diloco_operator.decide.objects.endpoint import endpoint
    from diloco_operator.manifests import (
        Inputs,
        InvalidSpecError,
        ManifestError,
        Remote,
        Scale,
        all_children,
        choose_images,
    )
    from diloco_operator.options import OperatorOptions

    running = not job.spec.suspend
    learners = {key: pool.learners * running for key, pool in names.pools(job.spec).items()}
    options = OperatorOptions(operator_namespace=operator_namespace)
    others = [where for where in names.clusters(job.spec).values() if where]
    remote = Remote("", _HOME_ID, endpoint(job.spec.syncer.expose, None).address or _ENDPOINT)
    # Objects elsewhere have the uid in labels; those of home would have an owner with it, which cannot be applied.
    with_uid = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": _JOB_UID})})
    try:
        images = choose_images(job.spec, image)
        inputs = Inputs(images, Scale(learners, int(running)), _placeholders(job))
        found: Built = {"": [_readable(one.body) for one in all_children(job, options, inputs)]}
        for one in all_children(with_uid, options, replace(inputs, remotes=dict.fromkeys(others, remote))):
            if one.cluster:
                found.setdefault(one.cluster, []).append(_anywhere(_readable(one.body)))
    except InvalidSpecError as error:
        raise located(error.problems, file) from None
    except ManifestError as error:
        hint = " (here: --image)" if image is None and "image" in str(error).partition(":")[0] else ""
        raise RenderError(f"{error}{hint}") from None
    return found


def _placeholders(job: DiLoCoJob) -> "Certificates":
    from diloco_operator import names
    from diloco_operator.manifests import Certificates

    name = job.metadata.name
    sets = names.stateful_sets(name, names.pools(job.spec)).values()
    leafs = [names.syncer_secret(name), *map(names.learner_secret, sets)]
    held = dict.fromkeys(("ca.crt", "tls.crt", "tls.key"), _PLACEHOLDER)
    authority = dict.fromkeys(("ca.crt", "ca.key"), _PLACEHOLDER)
    return Certificates({names.authority_secret(name): authority, **dict.fromkeys(leafs, held)})


def _anywhere(made: dict[str, Any]) -> dict[str, Any]:
    """Without the namespace, which only the kubeconfig says."""
    return {**made, "metadata": {key: value for key, value in made["metadata"].items() if key != "namespace"}}


def _readable(made: dict[str, Any]) -> dict[str, Any]:
    """Put a Secret's values as text, as placeholders are not base64."""
    if made["kind"] != "Secret":
        return made
    return {("stringData" if key == "data" else key): value for key, value in made.items()}
