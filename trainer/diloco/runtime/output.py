"""Output of a process that may outlive its reader.

A closed pipe, a full disk, a lost terminal or a reader that has stopped costs only the text: training does not stop
because its output cannot be written.
"""

import errno
import io
import os
import select
import threading
from collections.abc import Callable
from typing import Final, TextIO

PATIENCE_SECONDS: Final = 2.0
"""Time for a reader to take a text; after one that was not taken, later ones are dropped until it reads (ours)."""
_PIECE_BYTES: Final = 512
"""POSIX: a pipe that is ready for writing takes at least this much without blocking."""


def escaped(text: str) -> str:
    """``text`` with unprintable characters as escape sequences, so that it stays on one line.

    Text from other processes and files is shown to people: a line break in it could forge a line, and a terminal would
    obey control characters.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class LastingOutput(io.TextIOBase):
    """A text stream to a file descriptor that never raises. It is unbuffered, so no write can fail later."""

    def __init__(self, stream: TextIO, failed: Callable[[str], None] = lambda _: None) -> None:
        """Write where ``stream`` writes; ``failed`` gets the reason why texts are lost, once until one is written."""
        self._stream = stream
        self._failed = failed
        self._failing = False
        self._cut = False
        """Whether the last text was cut off in the middle."""
        self._lock = threading.Lock()
        self.lost = 0
        """Number of lost texts."""
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            self._descriptor = None

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the stubs
        """The stream's encoding."""
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Always true."""
        return True

    def write(self, text: str) -> int:
        """Write ``text``, or drop it if that fails."""
        try:
            with self._lock:
                self._put(text)
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self.lost += 1
            if not self._failing:
                self._failing = True
                self._failed((error.strerror if isinstance(error, OSError) else None) or str(error))
        else:
            self._failing = False
        return len(text)

    def flush(self) -> None:
        """Nothing to do, as it is unbuffered."""

    def _put(self, text: str) -> None:
        if self._descriptor is None:
            self._stream.write(text)
            self._stream.flush()
            return
        rest = memoryview((f"\n{text}" if self._cut else text).encode(self.encoding, "backslashreplace"))
        ready = select.poll()
        ready.register(self._descriptor, select.POLLOUT)
        while rest:
            if not ready.poll(0 if self._failing else 1000 * PATIENCE_SECONDS):
                raise BlockingIOError(errno.EAGAIN, "Its reader has stopped reading")
            rest = rest[os.write(self._descriptor, rest[:_PIECE_BYTES]) :]
            self._cut = bool(rest)
