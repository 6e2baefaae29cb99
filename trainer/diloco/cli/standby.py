"""A process that has loaded what takes a learner or a syncer seconds to load, and waits to be told which it is to be.

``diloco run`` keeps one (`diloco.local.standby`). Once told it is as if it had been started then.
"""

import ctypes
import importlib
import json
import os
import socket
import sys
import threading
from pathlib import Path

from diloco.cli import entry
from diloco.local.standby import MESSAGE_BYTES
from diloco.runtime.process.die_with_parent import die_with_parent

_LOADED = ("diloco.cli.processes", "diloco.learner.process", "diloco.syncer.process")
_NICE = 10


def main() -> None:
    """Load, wait for the order on the socket that is the standard input, and carry it out."""
    die_with_parent(int(sys.argv[1]))
    loading = threading.Thread(target=_load)
    loading.start()
    loading.join()
    with socket.socket(fileno=os.dup(0)) as way:
        way.send(b"r")
        message, files, *_ = socket.recv_fds(way, MESSAGE_BYTES, 2)
        if not message:
            return
        command, environment = json.loads(message)
        _become(command, environment, files)
        way.send(b"r")
    entry.main()


def _load() -> None:
    if sys.platform == "linux":  # there it is this thread's alone
        os.nice(_NICE)
    for name in _LOADED:
        importlib.import_module(name)


def _become(command: list[str], environment: dict[str, str], files: list[int]) -> None:
    nothing, log = files
    for own, file in enumerate((nothing, log, log)):
        os.dup2(file, own)
    os.close(nothing)
    os.close(log)
    os.environ.update(environment)
    sys.argv = command[2:]
    # The command line that others see: see proc(5). `Standby` makes the room.
    start, end = (int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    title = "\0".join([*command, ""]).encode()[: end - start]
    ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
