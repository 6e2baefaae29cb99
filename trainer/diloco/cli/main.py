"""The program with all of its commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from diloco.cli import processes
from diloco.cli.chaos import command as chaos
from diloco.cli.jobs import data, page, replay, run, top, track
from diloco.cli.live.target import KUBECTL_PROGRAM
from diloco.cli.manifests import plan, render, validate
from diloco.cli.models import evaluate, export, tokens
from diloco.cli.needs_operator import add_cluster_commands
from diloco.cli.program import new_app, run_command
from diloco.cli.simulations import simulate, world
from diloco.runtime.build import version_text
from diloco.runtime.process.exits import end

app = new_app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diloco {version_text()}")
        raise typer.Exit


@app.callback()
def diloco(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train one model on clusters or regions that fail, differ in speed and are far apart.

    \b
    Begin with:
      diloco validate examples/two-regions/job.yaml
      diloco run examples/two-regions/job.yaml
    """


_WORK = "Work with jobs"
_PROCESSES = "Processes of a job (run by containers)"
app.command("run", rich_help_panel=_WORK)(run.run)
app.command("validate", rich_help_panel=_WORK)(validate.validate)
app.command("plan", rich_help_panel=_WORK)(plan.plan)
app.command("simulate", rich_help_panel=_WORK)(simulate.simulate)
app.command("world", rich_help_panel=_WORK)(world.world)
app.command("render", rich_help_panel=_WORK)(render.render)
app.command("status", rich_help_panel=_WORK)(top.status)
app.command("top", rich_help_panel=_WORK)(top.top)
app.command("page", rich_help_panel=_WORK)(page.page)
app.command("chaos", rich_help_panel=_WORK)(chaos.chaos)
app.command("track", rich_help_panel=_WORK)(track.track)
app.command("evaluate", rich_help_panel=_WORK)(evaluate.evaluate)
app.command("data", rich_help_panel=_WORK)(data.data)
app.command("export", rich_help_panel=_WORK)(export.export)
app.command("replay", rich_help_panel=_WORK)(replay.replay)
app.command("tokens", rich_help_panel=_WORK)(tokens.tokens)
add_cluster_commands(app, _WORK)
app.command("syncer", rich_help_panel=_PROCESSES)(processes.syncer)
app.command("learner", rich_help_panel=_PROCESSES)(processes.learner)


def main() -> None:
    """Entry point of the program, with all of its commands."""
    # kubectl starts kubectl-diloco for `kubectl diloco`.
    called = Path(sys.argv[0]).name
    end(execute(sys.argv[1:], program=KUBECTL_PROGRAM if called.startswith("kubectl-") else "diloco"))


def execute(arguments: list[str], *, program: str = "diloco") -> int:
    """Run the program with ``arguments`` and return its exit code; ``program``: the name it was called by."""
    return run_command(app, arguments, program)
