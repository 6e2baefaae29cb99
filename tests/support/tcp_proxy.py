"""A TCP relay on loopback that breaks connections after a number of bytes or on command, or holds an answer back."""

import contextlib
import socket
import threading
import time
from typing import Self

_PATIENCE_SECONDS = 30.0
_LONGEST_HOLD_SECONDS = 120.0


class TcpProxy:
    """Relays connections to ``target`` (``host:port``) within a ``with``; see ``cut_after_bytes``."""

    def __init__(self, target: str, delay_seconds: float = 0.0) -> None:
        """``delay_seconds``: what is sent in one go takes so long, each way."""
        self._delay_seconds = delay_seconds
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._left: int | None = None
        self._not_before: threading.Event | None = None
        self.connections = 0
        self.empty = threading.Event()
        """No connection is open any more."""
        self.was_cut = threading.Event()
        self._held_after: int | None = None
        self._answered: dict[socket.socket, int] = {}
        self.for_good = False
        """What is cut stays cut: no later connection reaches the target."""
        self._stalls_after: int | None = None
        self._carried: dict[socket.socket, int] = {}
        self.stalled = threading.Event()
        """A connection is stalled."""
        self.held = threading.Event()
        """An answer is being held back."""
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)

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

    def release(self) -> None:
        """Let everything pass again."""
        self._released.set()

    def cut(self) -> None:
        """Break every connection now."""
        with self._lock:
            self._left = None
            self.was_cut.set()
            for connection in tuple(self._sockets):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown() wakes accept(); close() alone would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.release()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:  # the target does not listen at the moment
                near.close()
                continue
            with self._lock:
                # Together with a cut: a connection that is being made meanwhile must not escape it.
                is_kept = not (self.for_good and self.was_cut.is_set())
                if is_kept:
                    self.connections += 1
                    self._sockets |= {near, far}
                    self.empty.clear()
            if not is_kept:
                near.close()
                far.close()
                continue
            for source, sink, answers in ((near, far, False), (far, near, True)):
                threading.Thread(
                    target=self._relay, args=(source, sink), kwargs={"answers": answers}, daemon=True
                ).start()

    def _relay(self, source: socket.socket, sink: socket.socket, *, answers: bool) -> None:
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
            with self._lock:
                self._sockets.discard(end)
                if not self._sockets:
                    self.empty.set()
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _is_held(self, source: socket.socket, count: int) -> bool:
        with self._lock:
            if self._held_after is None or self._released.is_set():
                return False
            self._answered[source] = self._answered.get(source, 0) + count
            return self._answered[source] > self._held_after

    def _is_stalled(self, source: socket.socket, count: int) -> bool:
        with self._lock:
            if self._stalls_after is None or self._released.is_set():
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
