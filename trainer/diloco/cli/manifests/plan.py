"""``diloco plan``: whether the links carry the job, and when it is complete, before anything runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from diloco.cli.manifests.plan_document import document
from diloco.cli.manifests.plan_model import model_of
from diloco.cli.manifests.plan_view import plan_view
from diloco.plan.plan import make_plan
from diloco.runtime.console import new_console
from diloco.runtime.process.exits import EXIT_DOES_NOT_FIT, EXIT_OK
from diloco.simulate.planning.tried import tried
from diloco.spec import load_job
from diloco.spec.quantities import parse_bytes
from diloco.world.reading import read_world


def plan(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="The manifest, a YAML file.", show_default=False)],
    world: Annotated[
        Path | None,
        typer.Option(
            "--world",
            metavar="WORLD",
            help="A world file: links, step times, failures, prices. --link and --step change it.",
        ),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            "--link",
            metavar="REGION=RATE[,RTT]",
            help="Link from a region to the syncer, shared by its learners; '*' means every region, 'syncer' the "
            "syncer's own link, shared by all. A link that is not given counts as unlimited. May be repeated.",
        ),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option(
            "--step",
            metavar="REGION[/POOL]=SECONDS",
            help="How long an inner step takes; '*' means every pool. Without it, the shortest that fits is printed. "
            "May be repeated.",
        ),
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(
            "--parameters",
            metavar="NUMBER",
            help="Trained parameters of a model that cannot be built here, such as 1.3B. Fragments count as equal.",
        ),
    ] = None,
    hf: Annotated[
        Path | None,
        typer.Option(
            "--hf",
            metavar="FOLDER",
            help="The model's folder with a config.json, for its shapes. Without it and --parameters, the model is "
            "built as the manifest says, without values.",
        ),
    ] = None,
    device_memory: Annotated[
        str | None,
        typer.Option(
            "--device-memory",
            metavar="SIZE",
            help="Memory of each device of a learner, such as 80GiB: whether the job fits there.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as JSON.")] = False,
) -> None:
    """Check whether the links carry a job's schedule, and suggest remedies. Quick; nothing is trained.

    From the model's size, the schedule, link rates and step times it computes
    bytes, memory and how much of each link is used. A short simulation, with
    the engine of a real run, says how long a round takes, how much of each
    learner's work is merged, when the job is complete and what it costs, with
    failures and prices of the world file. Remedies are tried in the same way.

    \b
    Examples:
      diloco plan job.yaml --link '*=1Gbit/s,20ms' --step '*=0.5'
      diloco plan job.yaml --link us-west=200Mbit/s,80ms --step us-east=0.4 --step us-west=0.9
      diloco plan job.yaml --link us-west=25MB/s,80ms --link syncer=1Gbit/s
      diloco plan job.yaml --world world.yaml
      diloco plan own-model.yaml --parameters 1.3B --link '*=1Gbit/s' --step '*=2.5' --json
      diloco plan own-model.yaml --hf models/qwen3 --link '*=1Gbit/s,80ms' --step '*=2.5'

    \b
    Rates have a unit, of bits (kbit/s, Mbit/s, Gbit/s) or of bytes (kB/s, MB/s,
    GB/s); RTT is a round trip, such as 80ms. Exit code: 0 if it fits, 5 if it
    does not fit, needs step times to tell, or is too large to simulate shortly,
    2 for an error in the input.
    """
    manifest = load_job(job)
    given = read_world(manifest.spec, link or (), step or (), file=world)
    made = make_plan(manifest, given, *model_of(manifest.spec, parameters, hf, passes=device_memory is not None))
    if device_memory is not None:
        made = replace(made, device_bytes=parse_bytes("--device-memory", device_memory))
    found = tried(made)
    if as_json:
        typer.echo(json.dumps(document(made, found), indent=2))
    else:
        new_console().print(plan_view(made, found))
    fits = found.fit.fits and not made.device_too_small
    raise typer.Exit(EXIT_OK if fits else EXIT_DOES_NOT_FIT)
