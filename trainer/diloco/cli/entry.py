"""The program's entry point, before anything slow is imported.

The kernel drops SIGTERM for a container's first process as long as it has no handler, and importing takes seconds. So
this module installs one first for ``diloco learner`` and ``diloco syncer``: it exits at once, as there is nothing yet
to shut down in order. The commands' own handlers replace it. Ctrl-C during the imports ends every command as it does
later, without a traceback from the middle of an import.
"""

import os
import signal
import sys
from typing import NoReturn

_PROCESSES = ("learner", "syncer")
_INTERRUPTED = 130
"""The exit code that shells use for Ctrl-C. The constant elsewhere is in a module that takes long to import."""


def main() -> None:
    """Entry point of the program."""
    if sys.argv[1:2] and sys.argv[1] in _PROCESSES:
        signal.signal(signal.SIGTERM, _exit)
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # otherwise the parent process wants it ignored
        signal.signal(signal.SIGINT, _interrupted)
    from diloco.cli.main import main as run  # after the handlers, as this is what takes long

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _exit(*_: object) -> NoReturn:
    # At once, as an exception could be caught by the code that is being imported.
    os._exit(0)


def _interrupted(*_: object) -> NoReturn:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
