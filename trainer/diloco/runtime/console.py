"""The console for a command's output: a terminal, a pipe or a file."""

import os
import sys
from functools import partial
from typing import TextIO, cast

from rich.console import Console

from diloco.runtime.output import LastingOutput

_PIPE_COLUMNS = 250


def new_console(file: TextIO | None = None) -> Console:
    """The console for this process's output, or for ``file``. It shows texts as they are: no markup, no emoji."""
    plain = partial(Console, file=file, markup=False, emoji=False)
    console = plain()
    # A pipe has no width: a table cut off at 80 columns would be of no use to grep.
    return console if console.is_terminal or "COLUMNS" in os.environ else plain(width=_PIPE_COLUMNS)


def lasting_output(elsewhere: str) -> TextIO:
    """This process's output, for work that goes on even if it can no longer be written.

    If so, that is reported once, on the other stream, with ``elsewhere``, which says where to look instead.
    """
    complaints = LastingOutput(sys.stderr)

    def failed(why: str) -> None:
        complaints.write(f"diloco: cannot write output ({why.lower()}); the run continues, {elsewhere}\n")

    return cast("TextIO", LastingOutput(sys.stdout, failed))
