"""``diloco run``'s way to the process that forks its syncer and its learners, so that each starts within milliseconds.

Most of a start is loading torch. Whatever is wrong with that process, all others are started in the usual way.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

from diloco.runtime.process.forking import ROOM, Order, ends, fork

if TYPE_CHECKING:
    import socket

_LOADING_SECONDS: Final = 300.0
"""Most to wait for it at the start (ours)."""
_ANSWER_SECONDS: Final = 10.0
"""One that has not forked in this time hangs (ours)."""


class Forked:
    """A process that was forked for this one, as `subprocess.Popen` shows others."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code (negative: the signal that ended it); None while it runs."""
        return self._ended(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for its end; its exit code."""
        return self._ended(0)

    def _ended(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


class ForkServer:
    """Used from the main thread only."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it. ``environment``: what numerical libraries read while they load, beyond this process's own."""
        self._way: socket.socket | None = None
        self._loaded = False
        self._until = time.monotonic() + _LOADING_SECONDS
        if sys.platform != "linux":
            return
        here, there = ends()
        with there:
            # Our own interpreter with our own arguments, as a list.
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "diloco.cli.fork_server", ROOM],
                stdin=there.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **environment},
                process_group=0,
            )
        here.settimeout(0)
        self._way = here

    def loading(self) -> bool:
        """Whether processes would start sooner if they waited for it."""
        if self._way is None or self._loaded:
            return False
        try:
            self._loaded = bool(self._way.recv(64))
        except BlockingIOError:
            if time.monotonic() < self._until:
                return True
        if not self._loaded:
            self.end()
        return False

    def fork(self, command: Sequence[str], environment: Mapping[str, str], files: Sequence[BinaryIO]) -> Forked | None:
        """A process of this command, in a process group of its own; None: it has to be started in the usual way."""
        if self._way is None or self.loading():
            return None
        order = Order(command, environment, os.getcwd(), 0)  # noqa: PTH109  # as text
        try:
            return Forked(fork(self._way, order, [file.fileno() for file in files], _ANSWER_SECONDS))
        except OSError:
            self.end()
            return None

    def end(self) -> None:
        """Leave none behind. What it has forked goes on."""
        if self._way is not None:
            self._way.close()
            self._way = None
            self._process.kill()
            self._process.wait()
