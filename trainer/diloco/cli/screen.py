"""Where what is drawn is printed: a terminal, a pipe, a file."""

import os

from rich.console import Console

_PIPE_COLUMNS = 250


def new_console() -> Console:
    """The console of this process's output."""
    console = Console()
    # A pipe has no edge to keep within: a table that is cut at 80 columns is of no use to grep.
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_PIPE_COLUMNS)
