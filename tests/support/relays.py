"""What stands between a learner and the syncer: a relay, one that routes by SNI, one with an idle timeout.

None of them ends TLS. In a cluster this file is a program of its own.
"""

import contextlib
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME = 22, 1, 0
_LARGEST_RECORD = 16_384


class Relay:
    """Accepts connections, within a ``with``, and relays each to its target in threads of its own."""

    def __init__(self, target: str = "", host: str = "127.0.0.1", port: int = 0) -> None:
        self._to = target
        self._listener = socket.create_server((host, port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() would not
        self._listener.close()
        self._accepting.join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Break every connection now."""
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(near,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):  # the target may not listen at the moment
            self._keep(near)
            found = self._target(near)
            if found is not None:
                target, early = found
                host, _, port = target.rpartition(":")
                with socket.create_connection((host, int(port))) as far:
                    self._keep(far)
                    far.sendall(early)
                    self._relay(near, far)

    def _keep(self, one: socket.socket) -> None:
        with self._lock:
            self._sockets.add(one)

    def _target(self, near: socket.socket) -> tuple[str, bytes] | None:
        """Where a connection leads, and what was read of it; None: nowhere."""
        del near
        return self._to, b""

    def _relay(self, near: socket.socket, far: socket.socket) -> None:
        other, since = {near: far, far: near}, time.monotonic()
        while True:
            self._lasts(time.monotonic() - since)
            ready, _, _ = select.select(list(other), [], [], self._patience())
            if not ready and self._patience() is not None:
                self._silent()
                return
            for one in ready:
                data = one.recv(1 << 16)
                if not data:
                    return
                other[one].sendall(data)

    def _patience(self) -> float | None:
        return None

    def _silent(self) -> None:
        """A connection is dropped because nothing has passed."""

    def _lasts(self, seconds: float) -> None:
        """A connection has lasted so long."""


class SniProxy(Relay):
    """Leads each connection to where its server name leads, and closes those without a route."""

    def __init__(self, routes: Mapping[str, str], host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__("", host, port)
        self.routes = dict(routes)
        self.seen: list[str] = []
        """Server names, in the order of the connections."""

    def _target(self, near: socket.socket) -> tuple[str, bytes] | None:
        early = read_client_hello(near.recv)
        if not early:  # a client that was closed while it connected
            return None
        name = server_name(early)
        self._sees(name)
        target = self.routes.get(name)
        return None if target is None else (target, early)

    def _sees(self, name: str) -> None:
        self.seen.append(name)


class IdleProxy(Relay):
    """A load balancer that forgets a connection in which nothing has passed for ``idle_seconds``."""

    def __init__(self, target: str, idle_seconds: float) -> None:
        super().__init__(target)
        self._idle_seconds = idle_seconds
        self.dropped = threading.Semaphore(0)
        """Released for each connection that was dropped."""
        self.outlasted = threading.Event()
        """A connection has lasted for more than twice the timeout."""

    def _patience(self) -> float | None:
        return self._idle_seconds

    def _silent(self) -> None:
        self.dropped.release()

    def _lasts(self, seconds: float) -> None:
        if seconds > 2 * self._idle_seconds:
            self.outlasted.set()


class _Telling(SniProxy):
    def _sees(self, name: str) -> None:
        super()._sees(name)
        sys.stdout.write(f"{name}\n")


def serve_by_name(port: int, routes: Mapping[str, str]) -> None:
    """Be a program of its own, on every address, that prints the server name of each connection."""
    with _Telling(routes, "0.0.0.0", port):
        threading.Event().wait()


def read_client_hello(receive: Callable[[int], bytes]) -> bytes:
    """The record with a ClientHello, as it was received; what came so far if the sender has ended."""

    def exactly(count: int) -> bytes:
        got = b""
        while len(got) < count and (more := receive(count - len(got))):
            got += more
        return got

    header = exactly(5)
    return header + exactly(min(int.from_bytes(header[3:5], "big"), _LARGEST_RECORD)) if len(header) == 5 else header


def server_name(record: bytes) -> str:
    """The server name in a ClientHello (RFC 8446 4.1.2, RFC 6066 3); empty if it has none."""
    if len(record) < 44 or record[0] != _HANDSHAKE or record[5] != _CLIENT_HELLO:
        return ""
    at = 5 + 4 + 2 + 32
    at += 1 + record[at]  # session id
    at += 2 + int.from_bytes(record[at : at + 2], "big")  # cipher suites
    at += 1 + record[at]  # compression methods
    end = at + 2 + int.from_bytes(record[at : at + 2], "big")
    at += 2
    while at + 4 <= end:
        kind, length = (int.from_bytes(record[at + i : at + i + 2], "big") for i in (0, 2))
        if kind == _SERVER_NAME:
            return record[at + 9 : at + 4 + length].decode("ascii")
        at += 4 + length
    return ""
