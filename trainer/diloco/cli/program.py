"""How the program runs one of its commands and reports errors.

A user's mistake is reported as one line on stderr with exit code 2, never as a traceback. Every such error in diloco is
a ValueError or RuntimeError of its own class, whose text is that line.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import typer
from typer.exceptions import TyperException

from diloco.runtime.last_error import write_last_error
from diloco.runtime.output import LastingOutput, escaped
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_UNEXPECTED

_HELP: Final = ["-h", "--help"]


def new_app() -> typer.Typer:
    """The program without its commands."""
    return typer.Typer(
        name="diloco",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": _HELP},
    )


def run_command(app: typer.Typer, arguments: Sequence[str], program: str = "diloco") -> int:
    """Run the program with ``arguments`` and return its exit code; ``program``: the name it was called by."""
    command = typer.main.get_command(app)
    _show_flags_without_type(command)
    try:
        code = command(args=list(arguments), prog_name=program, standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`diloco ... | head`): prevent the interpreter's error message at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNEXPECTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
        return EXIT_BAD_INPUT
    except TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "diloco"
        if error.format_message():  # a bare command has no message, and has shown its help
            complain(f"{error.format_message()} (see {path} --help)")
        return EXIT_BAD_INPUT
    except (ValueError, RuntimeError) as error:
        if not type(error).__module__.startswith(("diloco.", "diloco_operator.")):
            raise  # a bug in diloco: show the traceback
        complain(str(error))
        return EXIT_BAD_INPUT
    return code if isinstance(code, int) else 0


def _show_flags_without_type(command: Any) -> None:
    """In help ``--resume``, not typer's ``--resume <bool>``."""
    for option in command.get_params(typer.Context(command, help_option_names=_HELP)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _show_flags_without_type(inner)


def complain(text: str) -> None:
    """Write an error to stderr, and to the file of last errors, line by line."""
    write_last_error(escaped(text))
    output = LastingOutput(sys.stderr)
    for line in text.splitlines():
        output.write(f"diloco: {escaped(line)}\n")
