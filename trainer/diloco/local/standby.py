"""A process that waits to become a learner or the syncer, so that one that died is back without loading torch first.

It holds up to 570 MB of memory, the files included that processes share. Whatever is wrong with it, what needs it
is started in the usual way.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import psutil

MESSAGE_BYTES: Final = 1 << 16
_TITLE_BYTES: Final = 1 << 13
_AFTER_SECONDS: Final = 5.0
"""From the start of the run, or since it was used: others load then (ours)."""
_ANSWER_SECONDS: Final = 1.0
"""One that does not answer in this time hangs (ours)."""
LEAST_BYTES: Final = 4 << 30
"""Of memory that is free before it is started (ours)."""


class Standby:
    """At most one process at a time. Used from the main thread only."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """``environment``: what numerical libraries read while they load, beyond this process's own."""
        self._environment = environment
        self._kept: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._due_at = time.monotonic() + _AFTER_SECONDS

    def keep(self) -> None:
        """Start one if it is due and the machine has the memory."""
        if self._kept is not None and self._kept[0].poll() is not None:
            self.end()
        if self._kept is None and time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + _AFTER_SECONDS
            if psutil.virtual_memory().available >= LEAST_BYTES:
                with suppress(OSError):
                    self._start()

    def _start(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.settimeout(0.0)
        with there:
            process = subprocess.Popen(  # noqa: S603  # our own interpreter and arguments
                [sys.executable, "-m", "diloco.cli.standby", str(os.getpid()), " " * _TITLE_BYTES],
                stdin=there.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **self._environment},
                process_group=0,
            )
        self._kept = process, here

    def take(
        self, command: Sequence[str], environment: Mapping[str, str], added: Mapping[str, str], log: BinaryIO
    ) -> "subprocess.Popen[bytes] | None":
        """Make it the process of this command, whose output goes to ``log``; None: that has to be started.

        ``environment``: what it loads with; ``added``: what it gets afterwards.
        """
        if self._kept is None or environment != self._environment:
            return None
        process, way = self._kept
        with suppress(OSError), Path(os.devnull).open("rb") as nothing:
            try:
                loaded = way.recv(1)
            except BlockingIOError:  # it is at it
                return None
            if loaded:
                way.settimeout(_ANSWER_SECONDS)
                socket.send_fds(way, [json.dumps([command, dict(added)]).encode()], [nothing.fileno(), log.fileno()])
                if way.recv(1):
                    self._kept, self._due_at = None, time.monotonic() + _AFTER_SECONDS
                    way.close()
                    return process
        self.end()
        return None

    def end(self) -> None:
        """Leave none behind."""
        if self._kept is not None:
            process, way = self._kept
            self._kept, self._due_at = None, time.monotonic() + _AFTER_SECONDS
            way.close()
            process.kill()
            process.wait()
