"""The process from which ``diloco run`` forks the syncer and the learners: it has loaded what they load."""

import gc
import importlib
import os
import socket
from pathlib import Path

from diloco.cli import entry
from diloco.runtime.process.forking import become, freeze, serve

_LOADED = ("diloco.cli.processes", "diloco.learner.process.learner_process", "diloco.syncer.process")


def main() -> None:
    """Load, say so on the socket that is the standard input, and fork; each forked process goes on from here."""
    way = socket.socket(fileno=os.dup(0))
    gc.disable()
    for name in _LOADED:
        importlib.import_module(name)
    gc.enable()
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return  # a forked process would lack the others
    freeze()
    way.send(b"loaded")
    become(*serve(way))
    entry.main()


if __name__ == "__main__":
    main()
