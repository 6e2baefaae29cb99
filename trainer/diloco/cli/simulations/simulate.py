"""``diloco simulate``: a job in a world, in virtual time."""

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from diloco.runtime.console import new_console
from diloco.spec import load_job
from diloco.spec.quantities import parse_duration
from diloco.world.reading import read_world

_LONGEST_SECONDS: Final = 1e9


def simulate(
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
        typer.Option("--link", metavar="REGION=RATE[,RTT]", help="As of 'diloco plan'. May be repeated."),
    ] = None,
    step: Annotated[
        list[str] | None,
        typer.Option("--step", metavar="REGION[/POOL]=SECONDS", help="As of 'diloco plan'. May be repeated."),
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
        typer.Option("--hf", metavar="FOLDER", help="The model's folder with a config.json, for its shapes."),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train the model for real, on the CPU. Without it, steps are counted.")
    ] = False,
    for_time: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Virtual time to simulate, such as 12h or 2d. Default: to the end."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**31 - 1, help="Of step times, delays and failures.")] = 0,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="FIELD=VALUE,VALUE",
            help="Simulate with each value of a field, of the manifest's spec or, as world.FIELD, of the world. "
            "Several make every combination.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Directory for summary.json and report.html, or sweep.json and sweep.html. Default: "
            "simulations/NAME, by the job's name.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Simulate a job in virtual time: the engine, links and failures of a run, without its computing.

    It answers how long a job takes in a world, what it costs and how much of
    the work is merged. The result depends on the job, the world and the seed
    alone. Ctrl-C ends it with what is simulated so far.

    \b
    Examples:
      diloco simulate job.yaml --world world.yaml
      diloco simulate job.yaml --link '*=1Gbit/s,20ms' --step '*=0.5' --for 12h
      diloco simulate job.yaml --world world.yaml --sweep sync.quorum=1,2,4
      diloco simulate job.yaml --world world.yaml \\
        --sweep world.regions.us-west.link=1Gbit/s,10Gbit/s --sweep sync.interval=24,48
      diloco simulate job.yaml --world world.yaml --train

    Exit code: 0 if the job completes or the time is over, 4 if it fails, 5 if
    it would not complete in this world, 2 for an error in the input.
    """
    from diloco.cli.simulations.inputs import Inputs
    from diloco.cli.simulations.recording import simulate_once
    from diloco.cli.simulations.sweep import simulate_all

    manifest = load_job(job)
    given = read_world(manifest.spec, link or (), step or (), file=world)
    limit = None if for_time is None else parse_duration("--for", for_time, longest_seconds=_LONGEST_SECONDS)
    inputs = Inputs(manifest, given, parameters, hf, seed, limit, train)
    folder = output or Path("simulations", manifest.metadata.name)
    console = new_console()
    if sweep:
        raise typer.Exit(simulate_all(inputs, job, sweep, folder, console, as_json=as_json))
    simulated = simulate_once(inputs, folder, console)
    if as_json:
        typer.echo(json.dumps(simulated.document(), indent=2))
    else:
        console.print(simulated.table())
        console.print(f"\nThe report is {folder / 'report.html'}.")
    raise typer.Exit(simulated.exit_code)
