"""The program's entry point, before anything slow is imported.

For the first process of a container the kernel drops SIGTERM unless a handler is installed, and importing takes
seconds. This handler lets ``diloco learner`` and ``diloco syncer`` be stopped from the start, while there is nothing to
shut down; their own handlers replace it later. Until then, Ctrl-C also ends every command without a traceback from the
middle of an import.
"""

import os
import signal
import sys
from typing import NoReturn

from diloco.runtime.process.exits import EXIT_INTERRUPTED, EXIT_OK, STOP_SIGNALS

_PROCESSES = ("learner", "syncer", "rank")


def main() -> None:
    """Entry point of the program."""
    of_process = sys.argv[1:2] and sys.argv[1] in _PROCESSES
    if of_process:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, _exit)
        # What a user's code forks ends by SIGTERM, as a multiprocessing.Pool expects: our handlers are not for it.
        os.register_at_fork(after_in_child=_default_signals)
    if sys.argv[1:2] == ["rank"]:  # its learner's first process ends it, in order
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # otherwise the parent process wants it ignored
        signal.signal(signal.SIGINT, _interrupted)
    # After the handlers, as this is what takes long; for the processes of a job without all other commands.
    if of_process:
        from diloco.cli.processes import main as run
    else:
        from diloco.cli.main import main as run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def _exit(*_: object) -> NoReturn:
    # At once, as an exception could be caught by the code that is being imported.
    os._exit(EXIT_OK)


def _interrupted(*_: object) -> NoReturn:
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
