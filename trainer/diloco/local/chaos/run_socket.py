"""How ``diloco chaos`` reaches a run on this machine: by a Unix socket in the run's directory.

The run's supervisor injects the faults: it is the only one that signals its processes, so nothing else on the machine
can be hit, its journal has every fault, and a killed victim does not count as a failed process. Only the run's user
may connect. A session is a connection: pauses and cuts end with it, however ``diloco chaos`` ends, and the connection
ends with the run.

Each message is JSON: first what the run is, then a fault, answered by who was hit and why not all were. ``null`` ends
the session's pauses and cuts.
"""

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from diloco.local.chaos.injector import FaultInjector
from diloco.local.chaos.spec import ChaosError, Fault, FaultKind
from diloco.local.directory import RunDirectory
from diloco.local.status_poll import StatusError, fetch_status
from diloco.spec.status.syncer import SyncerStatus

_ANSWER_SECONDS: Final = 60.0
"""Longest wait for an answer: the supervisor looks ten times a second, unless the machine is busy."""
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a session needs to know of a run."""

    job: str
    learner_ids: tuple[str, ...]
    relayed: tuple[str, ...]
    """Regions whose link can be cut."""
    http_address: str


_FACTS: Final = TypeAdapter(RunFacts)
_REQUEST: Final[TypeAdapter[Fault | None]] = TypeAdapter(Fault | None)
_ANSWER: Final = TypeAdapter(tuple[tuple[str, ...], str])


class ChaosListener:
    """The supervisor's end of the socket."""

    def __init__(self, directory: RunDirectory, facts: RunFacts, announce: Callable[[str], None]) -> None:
        """Listen. If that is impossible, as on some file systems, the run goes on without."""
        self._path = directory.chaos_socket
        self._facts = _FACTS.dump_json(facts)
        self._connections: list[socket.socket] = []
        self._session: socket.socket | None = None
        """The connection that may inject faults: one at a time."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(0)
        self._inode = 0
        try:
            self._path.unlink(missing_ok=True)  # of a run that was killed: this one has the directory's lock
            with _address(self._path) as address:
                self._listener.bind(address)
            self._path.chmod(0o600)  # before anything can connect
            self._inode = self._path.stat().st_ino
            self._listener.listen()
        except OSError as error:
            announce(f"diloco chaos cannot reach this run: {self._path}: {error.strerror or error}")

    def serve(self, injector: FaultInjector) -> None:
        """Carry out and answer what has come since the last call. Never blocks."""
        with suppress(OSError):  # no connection waits, or no more files can be opened
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(0)
                self._connections.append(connection)
                connection.send(self._facts)
        for connection in tuple(self._connections):
            with suppress(BlockingIOError):
                with suppress(ConnectionError, ValidationError):
                    while message := connection.recv(_MOST_BYTES):
                        connection.send(_ANSWER.dump_json(self._answer(connection, message, injector)))
                self._end(connection, injector)

    def close(self) -> None:
        """End every session."""
        for one in (self._listener, *self._connections):
            one.close()
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:  # not the socket of another run in the same place
                self._path.unlink()

    def _answer(
        self, connection: socket.socket, message: bytes, injector: FaultInjector
    ) -> tuple[tuple[str, ...], str]:
        fault = _REQUEST.validate_json(message)
        if self._session not in (None, connection):
            return (), "another diloco chaos is at work on this run; wait for it"
        self._session = connection
        if fault is not None:
            return injector.obey(fault)
        injector.end_session()
        return (), ""

    def _end(self, connection: socket.socket, injector: FaultInjector) -> None:
        self._connections.remove(connection)
        connection.close()
        if self._session is connection:
            self._session = None
            injector.end_session()


class LocalPlace:
    """The run in a directory, for `session.Session`. ``begin`` before the first fault, ``close`` after the last."""

    def __init__(self, root: Path) -> None:
        """Connect to the run.

        Raises:
            ChaosError: no run is going on there, or it belongs to another user.
        """
        self._root = root
        self._failed: ChaosError | None = None
        """Why no fault can be injected any more."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_SECONDS)
        try:
            with _address(RunDirectory(root).chaos_socket) as address:
                self._socket.connect(address)
            self.facts = _FACTS.validate_json(self._socket.recv(_MOST_BYTES))
        except (OSError, ValidationError) as error:
            self._socket.close()
            why = "no run is going on there; start it with diloco run, then start chaos"
            if isinstance(error, PermissionError):
                why = "the run belongs to another user; only its owner can inject faults"
            elif isinstance(error, TimeoutError):
                why = "the run does not answer"
            raise ChaosError(f"{root}: {why}") from error

    def begin(self) -> None:
        """Begin to inject faults.

        Raises:
            ChaosError: another session is at work on the run.
        """
        if why := self._ask(None)[1]:
            raise ChaosError(f"{self._root}: {why}")

    def check(self, faults: tuple[Fault, ...]) -> None:
        """Check that the run can carry out the faults.

        Raises:
            ChaosError: one cuts a link without a relay.
        """
        cut = {victim for fault in faults if fault.kind is FaultKind.CUT for victim in fault.victims}
        if without := sorted(cut - set(self.facts.relayed)):
            raise ChaosError(f"cut {without[0]}: its link cannot be cut; start the run with diloco run --relays")

    def hit(self, fault: Fault) -> tuple[tuple[str, ...], str]:
        """See ``session.Place``."""
        return self._ask(fault)

    def status(self) -> SyncerStatus | None:
        """See ``session.Place``."""
        try:
            return fetch_status(self.facts.http_address, timeout_seconds=2.0)
        except StatusError:
            return None

    def over(self) -> bool:
        """See ``session.Place``.

        Raises:
            ChaosError: the run did not answer.
        """
        if self._failed is not None:
            raise self._failed
        # Every answer has been read: what can be read now is the end.
        return bool(select.select([self._socket], [], [], 0)[0])

    def heal(self) -> None:
        """See ``session.Place``."""
        self._ask(None)

    def close(self) -> None:
        """Let another session begin."""
        self._socket.close()

    def _ask(self, request: Fault | None) -> tuple[tuple[str, ...], str]:
        try:
            self._socket.send(_REQUEST.dump_json(request))
            return _ANSWER.validate_json(self._socket.recv(_MOST_BYTES))
        except TimeoutError:
            self._failed = ChaosError(f"{self._root}: the run did not answer")
            return (), "the run did not answer"
        except (OSError, ValidationError):
            return (), "the run has ended"


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """A name of a socket that is short enough: the kernel takes 107 bytes, whatever folder the run is in."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
