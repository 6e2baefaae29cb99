"""``diloco validate`` and ``diloco status``: look at a job before it runs, and while it does."""

import json
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
import yaml
from rich.console import Console

from diloco.local.picture import picture_of
from diloco.local.view import render
from diloco.local.watch import fetch_status
from diloco.runtime.addresses import AddressError, parse_address
from diloco.runtime.files import UnusableFileError, read_json
from diloco.spec import DiLoCoJob, load_job


class WhereError(ValueError):
    """What was given to ``diloco status`` is neither a run's directory nor an address; the text says what it is."""


def validate(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The manifest, a YAML file.", show_default=False)],
    full: Annotated[bool, typer.Option("--full", help="Print the manifest with every default filled in.")] = False,
) -> None:
    """Check a manifest: every field, and whether they go together. Quick; nothing is started.

    \b
    Examples:
      diloco validate job.yaml
      diloco validate job.yaml --full
    """
    manifest = load_job(job)
    if full:
        typer.echo(yaml.safe_dump(manifest.model_dump(mode="json", by_alias=True), sort_keys=False), nl=False)
    else:
        typer.echo(f"{job}: valid. {_told(manifest)}")


def status(
    where: Annotated[
        str, typer.Argument(metavar="[DIR | HOST:PORT | URL]", help="A run's directory, or a syncer's HTTP address.")
    ] = ".",
    as_json: Annotated[bool, typer.Option("--json", help="Print what the syncer says, as JSON.")] = False,
) -> None:
    """Show how a job stands: ask its syncer or, if the run is over, read its summary.

    \b
    Examples:
      diloco status out
      diloco status 127.0.0.1:8080
      diloco status http://syncer.example:8080 --json
    """
    directory = Path(where)
    if directory.is_dir():
        address = _endpoint(directory)
        summary = directory / "summary.json"
        if address is None or summary.is_file():
            _show_summary(summary, where)
            return
    else:
        address = _address(where)
    told = fetch_status(address)
    if as_json:
        typer.echo(told.model_dump_json(indent=2))
        return
    Console().print(render(picture_of(told), ()))


def _told(job: DiLoCoJob) -> str:
    spec = job.spec
    kind = spec.model.builtin.preset if spec.model.builtin else spec.model.entrypoint
    sync = spec.sync
    return (
        f"Job {job.metadata.name}: {len(spec.learner_ids)} learner(s) in {len(spec.regions)} region(s), model {kind}, "
        f"{spec.training.tokens:,} tokens, {sync.fragments} fragments every {sync.interval} inner steps, "
        f"quorum {sync.quorum}"
    )


def _endpoint(directory: Path) -> str | None:
    for path in (directory / "syncer" / "endpoint.json", directory / "endpoint.json"):
        try:
            return str(read_json(path)["http"])
        except (UnusableFileError, KeyError, TypeError):
            continue
    return None


def _show_summary(summary: Path, where: str) -> None:
    try:
        typer.echo(json.dumps(read_json(summary), indent=2))
    except UnusableFileError:
        raise WhereError(f"{where}: no run is there: neither syncer/endpoint.json nor summary.json") from None


def _address(where: str) -> str:
    address = urlsplit(where).netloc if where.startswith("http://") else where
    try:
        parse_address(address)
    except AddressError:
        raise WhereError(
            f"{where!r} is neither a run's directory nor an address: give DIR, HOST:PORT or http://HOST:PORT"
        ) from None
    return address
