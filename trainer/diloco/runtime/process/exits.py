"""Exit codes of every diloco process, which supervisors and operators act on, and the signals that ask for an end.

Quick to import: the entry point does.
"""

import atexit
import os
import signal
import sys
from typing import Final, NoReturn

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Each ends a process in order. SIGUSR1 is what Slurm's users have it send before a time limit."""

EXIT_OK: Final = 0
"""Done, or stopped as asked."""
EXIT_UNEXPECTED: Final = 1
"""An error of the program or its host: a restart may help."""
EXIT_BAD_INPUT: Final = 2
"""The manifest, the data, a file or an address is wrong: a restart does not help."""
EXIT_REFUSED: Final = 3
"""The syncer refuses this process (superseded, unknown, given up): a restart does not help."""
EXIT_JOB_FAILED: Final = 4
"""The job is over, and it failed: a restart does not help."""
EXIT_DOES_NOT_FIT: Final = 5
"""``diloco plan``: the links do not carry the job, or this cannot be determined."""
EXIT_LEASE_LOST: Final = 5
"""``diloco-operator``: another one may be running; after a restart this one waits until it can take over."""
EXIT_STUCK: Final = 6
"""``diloco learner``: alive, but the syncer has seen no step for too long: a restart may help."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C, as shells say it."""


def how_it_ended(exit_code: int) -> str:
    """Text for an exit code; negative: of a signal."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


class _End:
    code: int | None = None
    abrupt = False


def end(code: int) -> NoReturn:
    """`sys.exit`, but without taking all modules apart at the end: with torch, most of a second of computing.

    What other modules and a user's code registered with `atexit` is done before, and threads are waited for.
    """
    _End.code = code
    if _End.abrupt:
        _end_quickly()
    sys.exit(code)


def end_without_waiting() -> None:
    """Have ``end`` wait for no thread and no other module: one of them hangs, and nothing of ours is left to do."""
    _End.abrupt = True


def _end_quickly() -> None:
    if _End.code is None:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the interpreter says so
    os._exit(_End.code)


# Last in, first out: what is registered before anything else is loaded is called last.
atexit.register(_end_quickly)
