"""``diloco world``: the world file of a run, from what was measured in it."""

from pathlib import Path
from typing import Annotated

import typer

from diloco.cli.live.local_runs import run_directory
from diloco.local.directory import RunDirectory
from diloco.runtime.files import write_atomically
from diloco.runtime.yaml_text import yaml_text
from diloco.spec import load_job


def world(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write. Default: it is printed."),
    ] = None,
) -> None:
    """Write the world file of a run: its step times, links, restarts and recoveries, as they were measured.

    'diloco plan' and 'diloco simulate' take it with --world. A link that was
    never full carries more than was measured: correct it if you know better.

    \b
    Examples:
      diloco world runs/two-regions > world.yaml
      diloco simulate job.yaml --world world.yaml
    """
    from diloco.cli.simulations.of_run import read_world

    directory = RunDirectory(run_directory(run))
    job = load_job(directory.job)
    text = yaml_text(read_world(job, directory))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text)
