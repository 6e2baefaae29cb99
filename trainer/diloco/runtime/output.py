"""What a process prints, when it may outlive whoever reads it.

A closed pipe, a full disk, a terminal that is gone and a reader that has stopped reading cost the text, never the work:
training does not stop because nobody watches. It must not know what is printed.
"""

import errno
import io
import os
import select
import threading
from collections.abc import Callable
from typing import Final, TextIO

PATIENCE_SECONDS: Final = 2.0
"""That a reader is given to take a text; one that did not take the last one is given nothing (ours)."""
_PIECE_BYTES: Final = 512
"""POSIX: a pipe that is ready to be written takes so much at least without blocking."""


def escaped(text: str) -> str:
    """``text`` with whatever is not printable written as an escape sequence, so that it stays on one line.

    What other processes and files say is shown to people: a line break in it would be a line of ours, and a terminal
    obeys control characters.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class LastingOutput(io.TextIOBase):
    """A text stream to a file descriptor that never raises. Nothing is buffered, so nothing is left to fail later."""

    def __init__(self, stream: TextIO, failed: Callable[[str], None] = lambda _: None) -> None:
        """Write where ``stream`` writes; ``failed`` is told why a text is lost, once until one is written again."""
        self._stream = stream
        self._failed = failed
        self._failing = False
        self._cut = False
        """The last text was lost in the middle."""
        self._lock = threading.Lock()
        self.lost = 0
        """Texts that nobody got."""
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):  # a stream in memory
            self._descriptor = None

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the stubs
        """Of the stream."""
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Write ``text``; where that cannot be, drop it."""
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
        """Nothing is held back."""

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
                raise BlockingIOError(errno.EAGAIN, "Nobody reads it")
            rest = rest[os.write(self._descriptor, rest[:_PIECE_BYTES]) :]
            self._cut = bool(rest)
