"""A TCP relay on loopback that breaks connections after a number of bytes or on command, or holds an answer back."""

import contextlib
import socket
import threading
import time

from tests.support.relays import Relay

_PATIENCE_SECONDS = 30.0
_LONGEST_HOLD_SECONDS = 120.0


class TcpProxy(Relay):
    """Relays connections to ``target`` (``host:port``) within a ``with``; see ``cut_after_bytes``."""

    def __init__(self, target: str, delay_seconds: float = 0.0) -> None:
        """``delay_seconds``: what is sent in one go takes so long, each way."""
        super().__init__(target)
        self._delay_seconds = delay_seconds
        self._left: int | None = None
        self._not_before: threading.Event | None = None
        self.connections = 0
        self._open = 0
        self.empty = threading.Event()
        """No connection is open any more."""
        self.was_cut = threading.Event()
        self._held_after: int | None = None
        self._answered: dict[socket.socket, int] = {}
        self.for_good = False
        """What is cut stays cut: no later connection reaches the target."""
        self._stalls_after: int | None = None
        self._carried: dict[socket.socket, int] = {}
        self._silenced: set[socket.socket] = set()
        self.stalled = threading.Event()
        """A connection is stalled."""
        self.held = threading.Event()
        """An answer is being held back."""
        self._released = threading.Event()

    def cut_after_bytes(self, count: int, *, not_before: threading.Event | None = None) -> None:
        """Break every connection once ``count`` more bytes have passed, in both directions together.

        What follows those bytes waits for ``not_before`` and is dropped.
        """
        with self._lock:
            self._left = count
            self._not_before = not_before

    def hold_answer_after_bytes(self, count: int) -> None:
        """Once ``count`` more bytes have come back on one connection, let no more come back on it until ``release``."""
        with self._lock:
            self._held_after = count
            self._answered.clear()

    def stall_one_after_bytes(self, count: int) -> None:
        """Let nothing more pass that way on the first connection that has carried ``count`` more bytes one way."""
        with self._lock:
            self._stalls_after = count
            self._carried.clear()

    def silence(self) -> None:
        """Let nothing more pass on the connections that there are now. Neither side is told."""
        with self._lock:
            self._silenced = set(self._sockets)

    def release(self) -> None:
        """Let everything pass again."""
        self._released.set()

    def cut(self) -> None:
        with self._lock:
            self._left = None
            self.was_cut.set()
        super().cut()

    def __exit__(self, *_: object) -> None:
        self.release()
        super().__exit__()

    def _target(self, near: socket.socket) -> tuple[str, bytes] | None:
        # A connection that is being made during a cut is broken by it, as it is kept already.
        with self._lock:
            is_cut = self.for_good and self.was_cut.is_set()
        return None if is_cut else super()._target(near)

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            self._open += 1
            self.empty.clear()
        answers = threading.Thread(target=self._carry, args=(far, near), kwargs={"answers": True}, daemon=True)
        answers.start()
        self._carry(near, far, answers=False)
        answers.join()
        with self._lock:
            self._open -= 1
            if not self._open:
                self.empty.set()

    def _carry(self, source: socket.socket, sink: socket.socket, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(self._delay_seconds)
                if answers and self._is_held(source, len(data)):
                    self.held.set()
                    self._released.wait(_LONGEST_HOLD_SECONDS)
                if self._is_stalled(source, len(data)):
                    self.stalled.set()
                    self._released.wait(_LONGEST_HOLD_SECONDS)
                if self._passes(len(data)):
                    sink.sendall(data)
                else:
                    if self._not_before is not None:
                        self._not_before.wait(_PATIENCE_SECONDS)
                    self.cut()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _is_held(self, source: socket.socket, count: int) -> bool:
        with self._lock:
            if self._held_after is None or self._released.is_set():
                return False
            self._answered[source] = self._answered.get(source, 0) + count
            return self._answered[source] > self._held_after

    def _is_stalled(self, source: socket.socket, count: int) -> bool:
        with self._lock:
            if self._released.is_set():
                return False
            if source in self._silenced:
                return True
            if self._stalls_after is None:
                return False
            self._carried[source] = self._carried.get(source, 0) + count
            if self._carried[source] <= self._stalls_after:
                return False
            self._stalls_after = None  # one only
            return True

    def _passes(self, count: int) -> bool:
        with self._lock:
            if self._left is None:
                return True
            self._left -= count
            return self._left >= 0
