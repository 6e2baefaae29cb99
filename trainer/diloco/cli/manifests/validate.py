"""``diloco validate``: checks a manifest before it runs."""

import sys
from collections.abc import Iterator
from glob import has_magic
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated

import typer

from diloco.cli.manifests.render import check_for_operator
from diloco.runtime.yaml_text import yaml_text
from diloco.spec import DiLoCoJob, load_job
from diloco.spec.errors import Problem
from diloco.spec.job import JobSpec
from diloco.spec.kube.values import amount
from diloco.spec.outer_choice import OuterChoice
from diloco.spec.reading.load import located
from diloco.spec.training import DataSpec, LoopSpec, ModelSpec
from diloco.spec.words import listed

_SUCH_DEVICES = ("nvidia.com/mig-", "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron", "gpu.intel.com/")
"""Accelerators that are not named ``*/gpu``; slices of one are, to torch, devices of their own."""


def validate(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The manifest, a YAML file.", show_default=False)],
    full: Annotated[bool, typer.Option("--full", help="Print the manifest with all defaults filled in.")] = False,
) -> None:
    """Check a manifest: every field, whether fields go together, what the operator refuses. Nothing is started.

    Data or a model that is not on this machine is a warning, and so are several
    accelerators for one process.

    \b
    Examples:
      diloco validate job.yaml
      diloco validate job.yaml --full
    """
    manifest = load_job(job)
    check_for_operator(manifest, job)
    spec = manifest.spec
    missing = (_missing_data(spec.data), _missing_model(spec.model), _missing_loop(spec.loop))
    for warning in (*filter(None, missing), *_one_process(spec)):
        typer.echo(f"diloco: {located([warning], job)}", err=True)
    if full:
        typer.echo(yaml_text(manifest.model_dump(mode="json", by_alias=True)), nl=False)
    else:
        typer.echo(f"{job}: valid. {_summary(manifest)}")
        typer.echo(f"Outer optimizer: {OuterChoice.of(manifest.spec)}")


def _missing_data(data: DataSpec) -> Problem | None:
    """The path that ``diloco run`` would not find. It is no error, as pods have files of their own."""
    for place, one in [("data", data), *((f"data.mixture[{i}]", part) for i, part in enumerate(data.mixture or ()))]:
        for field, source in (("text", one.text), ("tokens", one.tokens), ("documents", one.documents)):
            if source is not None and source.path and _is_missing(source.path):
                return _missing(f"spec.{place}.{field}.path", source.path)
    return None


def _is_missing(path: str) -> bool:
    return not (has_magic(path) or "://" in path or Path(path).exists())


def _missing_model(model: ModelSpec) -> Problem | None:
    folder = model.huggingface
    if folder is None or Path(folder.path).exists():
        return None
    return _missing("spec.model.huggingface.path", folder.path)


def _missing_loop(loop: LoopSpec | None) -> Problem | None:
    """The module that cannot be found; nothing of it is run."""
    folders = ["", *sys.path]
    module = "" if loop is None else loop.entrypoint.partition(":")[0]
    name = ""
    for part in filter(None, module.split(".")):
        name = f"{name}.{part}".lstrip(".")
        found = PathFinder.find_spec(name, folders)
        if found is None:
            return _missing("spec.loop.entrypoint", f"module {module}")
        folders = found.submodule_search_locations or []
    return None


def _one_process(spec: JobSpec) -> Iterator[Problem]:
    """Pools with several devices that may be accelerators, which only the user knows, for one process."""
    for i, region in enumerate(spec.regions):
        for j, pool in enumerate(region.pools):
            if pool.processes_per_node is not None or pool.resources is None:
                continue
            for name, quantity in pool.resources.limits.items():
                if any(word in name for word in _SUCH_DEVICES) and amount(quantity) > 1:
                    place = f"spec.regions[{i}].pools[{j}].resources.limits.{name}"
                    text = f"{quantity} devices count as one process; give processesPerNode if each is an accelerator"
                    yield Problem(place, text)


def _missing(place: str, path: str) -> Problem:
    return Problem(place, f"{path} does not exist here, where 'diloco run' would need it")


def _summary(job: DiLoCoJob) -> str:
    spec = job.spec
    sync = spec.sync
    return (
        f"Job {job.metadata.name}: {len(spec.learner_ids)} learner(s) in {len(spec.regions)} region(s), "
        f"model {spec.model.name}, {spec.training.tokens:,} tokens, "
        f"{sync.fragments} fragments every {sync.interval} inner steps, quorum {sync.quorum}{_elsewhere(job)}"
    )


def _elsewhere(job: DiLoCoJob) -> str:
    """Which regions are in other clusters, and what only the operator can check of them; empty: none are."""
    secrets = {
        region.name: region.cluster.kubeconfig_secret_ref for region in job.spec.regions if region.cluster is not None
    }
    if not secrets:
        return ""
    places = listed([f"{region} (Secret {one.name}, key {one.key})" for region, one in secrets.items()], "and")
    several = len({(one.name, one.key) for one in secrets.values()}) > 1
    also = ". No two of these may lead to the same namespace of the same cluster" if several else ""
    return f". In other clusters: {places}; check each Secret with 'diloco cluster check'{also}"
