"""One child process: its program, its log, its process group.

Start children from the program's main thread only (see ``runtime.process.die_with_parent``).
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from diloco.local.fork_server import Forked, ForkServer
from diloco.runtime import cache
from diloco.runtime.last_error import VARIABLE, read_last_error

LOG_BYTES = 16 << 20
"""A log that exceeds this is moved aside, in place of the log that was moved before (ours)."""
_TAIL_BYTES = 1 << 16


class Child:
    """A diloco process, run as ``python -m diloco.cli.entry ARGUMENTS``, which can be restarted after its end."""

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], forks: ForkServer | None = None
    ) -> None:
        """Do not start it yet; ``environment`` is added to this process's own. ``forks``: what it is forked by."""
        # Our own interpreter with our own arguments, as a list.
        self._command = [sys.executable, "-m", "diloco.cli.entry", *arguments, "--parent", str(os.getpid())]
        self._forks = forks
        self._log = log
        self._error = log.with_suffix(".error")
        self._environment = {
            **os.environ,
            **environment,
            VARIABLE: str(self._error),
            cache.VARIABLE: str(cache.cache_folder()),
        }
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._log_start = 0

    def start(self) -> int:
        """Start it and return its process id; its output is appended to the log.

        If the log cannot be opened, its lines are lost and the process runs all the same.

        Raises:
            OSError: the system cannot start another process or open another file.
        """
        with suppress(OSError):
            self._error.unlink()  # it is of the one before
        with self._open_log() as log, Path(os.devnull).open("rb") as nothing:
            self._log_start = log.tell()
            # It has a process group of its own: Ctrl-C in the terminal must reach only the supervisor, which stops the
            # others in order.
            forked = self._forks and self._forks.fork(self._command, self._environment, [nothing, log, log])
            self._process = forked or subprocess.Popen(  # noqa: S603
                self._command,
                stdin=nothing,
                stdout=log,
                stderr=log,
                env=self._environment,
                process_group=0,
            )
        return self._process.pid

    def _open_log(self) -> BinaryIO:
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)  # the folder may have been removed meanwhile
            return self._log.open("ab")
        except OSError:
            return Path(os.devnull).open("ab")

    def poll(self) -> int | None:
        """Its exit code (negative: the signal that ended it), or None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its process group, SIGTERM to the process alone, which ends its others in order.

        Does nothing if it has ended.
        """
        if self._process is not None and self._process.poll() is None:
            (os.kill if number == signal.SIGTERM else os.killpg)(self._process.pid, number)

    def bound_log(self) -> None:
        """If the log is too long, move its content to ``NAME.older.log``, in place of what was there.

        The process keeps its file open, so the content is copied and the file made empty. Lines written in between are
        lost; so is the content on a full disk, once it is twice as long. Never raises.
        """
        with suppress(OSError):
            size = self._log.stat().st_size
            if size <= LOG_BYTES:
                return
            older = self._log.with_suffix(".older.log")
            part = older.with_name(f".{older.name}.part")
            try:
                shutil.copyfile(self._log, part)
                part.replace(older)
            except OSError:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
                if size <= 2 * LOG_BYTES:
                    raise
            os.truncate(self._log, 0)
            self._log_start = 0

    def wait(self) -> None:
        """Wait for its end."""
        if self._process is not None:
            self._process.wait()

    def last_line(self) -> str:
        """Why it ended: its last error since its latest start, else the last line of its log."""
        if error := read_last_error(self._error):
            return error
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
