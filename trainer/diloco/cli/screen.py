"""The console for a command's output: a terminal, a pipe or a file."""

import os
import sys
from typing import TextIO, cast

from rich.console import Console

from diloco.runtime.output import LastingOutput

_PIPE_COLUMNS = 250


def new_console() -> Console:
    """The console of this process's output."""
    console = Console()
    # A pipe has no edge to keep within: a table that is cut at 80 columns is of no use to grep.
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPE_COLUMNS)


def lasting_output(elsewhere: str) -> TextIO:
    """This process's output, for work that goes on when nobody can read it any more.

    That is said once, on the other stream, with ``elsewhere``: where to look instead.
    """
    complaints = LastingOutput(sys.stderr)

    def failed(why: str) -> None:
        complaints.write(f"diloco: cannot write output ({why.lower()}); the run continues, {elsewhere}\n")

    return cast("TextIO", LastingOutput(sys.stdout, failed))
