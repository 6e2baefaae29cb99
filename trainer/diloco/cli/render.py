"""``diloco render``: what the operator would apply for a job, without a cluster."""

import importlib.util
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from diloco.spec import DiLoCoJob, load_job

if TYPE_CHECKING:
    from diloco_operator.manifests import Certificates

_PLACEHOLDER = "(made by the operator)"
_HEADER = """\
# What the operator applies for job {job} in namespace {namespace}. Each object also gets an owner reference to the job.
# Secrets hold placeholders here: the operator creates and renews certificates and keys itself.
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
) -> None:
    """Print the objects that the operator would create for a manifest. Nothing is sent anywhere.

    \b
    Examples:
      diloco render job.yaml --image registry.example/diloco:1
      diloco render job.yaml --image registry.example/diloco:1 | kubectl apply --dry-run=server -f -
    """
    manifest = load_job(job)
    if namespace is not None:
        metadata = {"name": manifest.metadata.name, "namespace": namespace}
        # Checked again, as a namespace has its own rules.
        manifest = manifest.model_copy(update={"metadata": _checked(metadata)})
    objects = _objects(manifest, image, operator_namespace)
    if output is Format.JSON:
        typer.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2, ensure_ascii=False))
        return
    typer.echo(_HEADER.format(job=manifest.metadata.name, namespace=manifest.metadata.namespace), nl=False)
    typer.echo(
        yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=True), nl=False
    )


def check_for_operator(job: DiLoCoJob) -> None:
    """Check the fields that only the operator reads: pod templates, volumes, variables.

    Skipped where the operator is not installed, as in the learners' image.

    Raises:
        RenderError: The operator would refuse the job; the text says why, one line per problem.
    """
    if importlib.util.find_spec("diloco_operator") is not None:
        # The operator may have a default image: none is no mistake of the manifest's.
        _built(job, "any", "any")


def _checked(metadata: dict[str, str]) -> Any:
    from pydantic import ValidationError

    from diloco.spec import Metadata

    try:
        return Metadata.model_validate(metadata)
    except ValidationError:
        raise RenderError(
            f"--namespace: {metadata['namespace']} is not a namespace; use a name of lower-case letters, digits and "
            "inner hyphens, at most 63 characters"
        ) from None


def _objects(job: DiLoCoJob, image: str | None, operator_namespace: str) -> list[dict[str, Any]]:
    # Imported here, as no other command needs it.
    from diloco_operator.decide.reconcile import unsupported

    if (cause := unsupported(job.spec)) is not None:
        raise RenderError(cause.message)
    return [_readable(one) for one in _built(job, image, operator_namespace)]


def _built(job: DiLoCoJob, image: str | None, operator_namespace: str) -> tuple[dict[str, Any], ...]:
    from diloco_operator import names
    from diloco_operator.manifests import ManifestError, ObservedImages, Scale, all_children, choose_images
    from diloco_operator.options import OperatorOptions

    running = not job.spec.suspend
    learners = {key: pool.learners * running for key, pool in names.pools(job.spec).items()}
    options = OperatorOptions(operator_namespace=operator_namespace)
    try:
        images = choose_images(job.spec, ObservedImages(), image)
        return all_children(job, options, images, Scale(learners, int(running)), _placeholders(job))
    except ManifestError as error:
        hint = " (here: --image)" if image is None and "image" in str(error).partition(":")[0] else ""
        raise RenderError(f"{error}{hint}") from None


def _placeholders(job: DiLoCoJob) -> "Certificates":
    from diloco_operator import names
    from diloco_operator.manifests import Certificates

    name = job.metadata.name
    sets = names.stateful_sets(name, names.pools(job.spec)).values()
    leafs = [names.syncer_secret(name), *map(names.learner_secret, sets)]
    held = dict.fromkeys(("ca.crt", "tls.crt", "tls.key"), _PLACEHOLDER)
    authority = dict.fromkeys(("ca.crt", "ca.key"), _PLACEHOLDER)
    return Certificates({names.authority_secret(name): authority, **dict.fromkeys(leafs, held)})


def _readable(made: dict[str, Any]) -> dict[str, Any]:
    """Put a Secret's values as text, as placeholders are not base64."""
    if made["kind"] != "Secret":
        return made
    return {("stringData" if key == "data" else key): value for key, value in made.items()}


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as blocks, and no aliases between objects."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # the base class's
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text.rstrip("\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
