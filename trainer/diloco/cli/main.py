"""The program: its commands and how it reports errors.

A user's mistake is reported as one line on stderr with exit code 2, never as a traceback. Every such error in diloco is
a ValueError or RuntimeError of its own class, whose text is that line.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from diloco import __version__
from diloco.cli import chaos, cluster_commands, evaluate, plan, processes, render, replay, run, tokens, top, validate
from diloco.cli.target import KUBECTL_PROGRAM
from diloco.runtime.exits import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_UNEXPECTED
from diloco.runtime.last_error import write_last_error
from diloco.runtime.output import LastingOutput, escaped

app = typer.Typer(
    name="diloco",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diloco {__version__}")
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
      diloco run examples/two-regions/job.yaml --output out
    """


_WORK = "Work with jobs"
_PROCESSES = "Processes of a job (run by containers)"
app.command("run", rich_help_panel=_WORK)(run.run)
app.command("validate", rich_help_panel=_WORK)(validate.validate)
app.command("plan", rich_help_panel=_WORK)(plan.plan)
app.command("render", rich_help_panel=_WORK)(render.render)
app.command("status", rich_help_panel=_WORK)(top.status)
app.command("top", rich_help_panel=_WORK)(top.top)
app.command("chaos", rich_help_panel=_WORK)(chaos.chaos)
app.command("evaluate", rich_help_panel=_WORK)(evaluate.evaluate)
app.command("replay", rich_help_panel=_WORK)(replay.replay)
app.command("tokens", rich_help_panel=_WORK)(tokens.tokens)
app.add_typer(cluster_commands.app, name="cluster", rich_help_panel=_WORK)
app.command("syncer", rich_help_panel=_PROCESSES)(processes.syncer)
app.command("learner", rich_help_panel=_PROCESSES)(processes.learner)


def main() -> None:
    """Entry point of the program."""
    # kubectl starts kubectl-diloco for `kubectl diloco`.
    called = Path(sys.argv[0]).name
    sys.exit(execute(sys.argv[1:], program=KUBECTL_PROGRAM if called.startswith("kubectl-") else "diloco"))


def execute(arguments: list[str], *, program: str = "diloco") -> int:
    """Run the program with ``arguments`` and return its exit code; ``program``: the name it was called by."""
    try:
        code = app(args=arguments, prog_name=program, standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`diloco ... | head`): prevent the interpreter's error message at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNEXPECTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}")
        return EXIT_BAD_INPUT
    except TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "diloco"
        if error.format_message():  # a bare command has no message, and has shown its help
            _complain(f"{error.format_message()} (see {command} --help)")
        return EXIT_BAD_INPUT
    except (ValueError, RuntimeError) as error:
        if not type(error).__module__.startswith("diloco."):
            raise  # a bug in diloco: show the traceback
        _complain(str(error))
        return EXIT_BAD_INPUT
    return code if isinstance(code, int) else 0


def _complain(text: str) -> None:
    write_last_error(escaped(text))
    output = LastingOutput(sys.stderr)
    for line in text.splitlines():
        output.write(f"diloco: {escaped(line)}\n")


if __name__ == "__main__":
    main()
