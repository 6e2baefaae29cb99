"""Where the program begins, before anything slow is imported.

A container's first process is the one that SIGTERM does not end by itself: the kernel drops it where no handler is
installed, and importing takes seconds. So ``diloco learner`` and ``diloco syncer`` can be ended from their first moment
on: nothing is begun yet that would need an end in order. Their own handlers replace this one.
"""

import os
import signal
import sys
from typing import NoReturn

_PROCESSES = ("learner", "syncer")


def main() -> None:
    """Entry point of the program."""
    if sys.argv[1:2] and sys.argv[1] in _PROCESSES:
        signal.signal(signal.SIGTERM, _exit)
    from diloco.cli.main import main as run  # after the handler: this is what takes so long

    run()


def _exit(*_: object) -> NoReturn:
    # At once, whatever is being imported: an exception could be caught there.
    os._exit(0)


if __name__ == "__main__":
    main()
