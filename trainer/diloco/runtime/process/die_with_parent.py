"""Ends a child process when its supervisor dies, even by SIGKILL.

Each child sets this up itself, first of all, rather than the parent between fork and exec: code there is not safe in a
process with threads.
"""

import ctypes
import os
import signal
import sys
import threading
import time

from diloco.runtime.process.exits import EXIT_UNEXPECTED

_PR_SET_PDEATHSIG = 1
_WATCH_SECONDS = 0.5


def die_with_parent(parent_pid: int) -> None:
    """Have this process killed when its parent ``parent_pid`` is gone; exits at once if it is gone already.

    On Linux the kernel does it (PR_SET_PDEATHSIG: the signal comes when the *thread* that started this process ends, so
    start children from a thread that lives as long as the program). Elsewhere a thread polls.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    else:
        threading.Thread(target=_watch, args=(parent_pid,), name="die-with-parent", daemon=True).start()
    # The parent may have died before the call above.
    if os.getppid() != parent_pid:
        os._exit(EXIT_UNEXPECTED)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_WATCH_SECONDS)
    os._exit(EXIT_UNEXPECTED)
