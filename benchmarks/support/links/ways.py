"""Ways to move a payload to the far side and back, for the benchmarks `wire` and `link`: ours, and plain TCP."""

import contextlib
import itertools
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, Protocol, TypeVar

from diloco.runtime.process.memory import keep_freed_memory
from diloco.wire.client.client import ClientOptions
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Alive, Join, PullRequest, PushHeader
from diloco.wire.tls.certificates import Authority
from diloco.wire.tls.tls import ClientTls, ServerTls
from support.links.peers import DONE, ORDER, PULL, PUSH, Far, fill, receive, send, serve
from support.processes import SPAWN, process
from testbed.blocking_client import BlockingClient
from testbed.repeating import repeating

JOB, LEARNER = "benchmark", "region/pool/0"
_SYNCER: Final = "syncer"
"""Its name in certificates, whatever its address."""
_DEADLINE_SECONDS: Final = 300.0
_ATTEMPTS: Final = 40
_ATTEMPT_PAUSE_SECONDS: Final = 0.5
_CONTROL_PAUSE_SECONDS: Final = 0.02
_VERSIONS: Final = itertools.count(1)
"""No two pushes are the same."""
T = TypeVar("T")


class Way(Protocol):
    """A way to move a payload, each call until it is whole and checked on the other side."""

    def push(self, payload: memoryview) -> None:
        """Send it."""

    def pull(self, payload: memoryview) -> None:
        """Receive as many bytes."""

    def close(self) -> None:
        """Close the connections."""


Make = Callable[[], Way]


class Wire:
    """Ours."""

    def __init__(self, address: str, tls: ClientTls | None) -> None:
        keep_freed_memory()
        self._client = BlockingClient(ClientOptions(address, tls=tls))
        self.control = connected(lambda: Control(self._client))

    def push(self, payload: memoryview) -> None:
        header = PushHeader(LEARNER, 1, 0, next(_VERSIONS), 1, 0, 1, 1, "None", len(payload), "1")
        self._client.push(header, payload, deadline_seconds=_DEADLINE_SECONDS)

    def pull(self, payload: memoryview) -> None:
        request = PullRequest(LEARNER, 1, len(payload), 0, "1")
        self._client.pull(request, lambda _: payload, deadline_seconds=_DEADLINE_SECONDS)

    def close(self) -> None:
        self.control.close()
        self._client.close()


class Control:
    """A session, which syncer and learner say hello on before anything else."""

    def __init__(self, client: BlockingClient) -> None:
        self._session = client.open_session(Join(JOB, LEARNER, "x", "y"))
        self._answers = iter(self._session)
        next(self._answers)  # the Welcome, which says how transfers are made

    def round_trip_seconds(self) -> float:
        began = time.perf_counter()
        self._session.send(Alive(1))
        next(self._answers)
        return time.perf_counter() - began

    def close(self) -> None:
        self._session.close(0)


def meanwhile(control: Control, seconds: list[float]) -> contextlib.AbstractContextManager[None]:
    """Time control messages while something else goes on."""
    return repeating(lambda: seconds.append(control.round_trip_seconds()), _CONTROL_PAUSE_SECONDS)


class PlainConnections:
    """Some plain TCP connections, each with a thread, which carry equal slices of a payload at once."""

    def __init__(self, address: tuple[str, int], count: int, tls: ClientTls | None = None) -> None:
        self._connections: list[socket.socket] = [socket.create_connection(address) for _ in range(count)]
        for connection in self._connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            context = ssl.create_default_context(cafile=str(tls.ca))
            context.load_cert_chain(tls.certificate, tls.key)
            self._connections = [context.wrap_socket(one, server_hostname=_SYNCER) for one in self._connections]
        self._threads = ThreadPoolExecutor(count)

    def push(self, payload: memoryview) -> None:
        self._share(_push, payload)

    def pull(self, payload: memoryview) -> None:
        self._share(_pull, payload)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._threads.shutdown()

    def _share(self, work: Callable[[socket.socket, memoryview], None], payload: memoryview) -> None:
        size = -(-len(payload) // len(self._connections))
        slices: Sequence[memoryview] = [payload[at : at + size] for at in range(0, len(payload), size)]
        list(self._threads.map(work, self._connections, slices))


def _push(connection: socket.socket, payload: memoryview) -> None:
    connection.sendall(ORDER.pack(PUSH, len(payload)))
    send(connection, payload)
    fill(connection, memoryview(bytearray(len(DONE))))


def _pull(connection: socket.socket, payload: memoryview) -> None:
    connection.sendall(ORDER.pack(PULL, len(payload)))
    receive(connection, payload)


def connected(call: Callable[[], T]) -> T:
    """Try until a connection stands; gRPC gives up its first attempts early on a long link."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(UnavailableError):
            return call()
        time.sleep(_ATTEMPT_PAUSE_SECONDS)
    return call()


@contextlib.contextmanager
def started(far: Far) -> Iterator[tuple[int, Connection]]:
    """A process that serves in this thread's network namespace: its port, and the way to it."""
    ours, theirs = SPAWN.Pipe()
    server = process(serve, far, theirs)
    server.start()
    theirs.close()
    try:
        yield ours.recv(), ours
    finally:
        server.kill()
        server.join()


def certificates(folder: Path) -> tuple[ServerTls, ClientTls]:
    """For the far side and for this one, at whatever address."""
    authority = Authority(folder)
    return authority.server(name=_SYNCER), replace(authority.learner(JOB, LEARNER), server_name=_SYNCER)
