"""Where the program begins, before anything slow is imported.

A container's first process is the one that SIGTERM does not end by itself: the kernel drops it where no handler is
installed, and importing takes seconds. So ``diloco learner`` and ``diloco syncer`` can be ended from their first moment
on: nothing is begun yet that would need an end in order. Their own handlers replace this one. Ctrl-C meanwhile ends
every command as it does later, without a traceback from the middle of an import.
"""

import os
import signal
import sys
from typing import NoReturn

_PROCESSES = ("learner", "syncer")
_INTERRUPTED = 130
"""As shells have it for Ctrl-C. Its name for others stands in a module that takes long to import."""


def main() -> None:
    """Entry point of the program."""
    if sys.argv[1:2] and sys.argv[1] in _PROCESSES:
        signal.signal(signal.SIGTERM, _exit)
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:  # else whoever started us wants it ignored
        signal.signal(signal.SIGINT, _interrupted)
    from diloco.cli.main import main as run  # after the handlers: this is what takes so long

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


def _exit(*_: object) -> NoReturn:
    # At once, whatever is being imported: an exception could be caught there.
    os._exit(0)


def _interrupted(*_: object) -> NoReturn:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
