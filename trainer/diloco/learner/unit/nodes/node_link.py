"""Connects the nodes of a learner: each further node to the first, over mutual TLS with the learner's certificate.

A node says who it is; once all are there, the first one tells where their processes meet. From then on a connection
that ends ends the process at both ends: a learner is started, and ends, as one. Training itself does not go this way.
"""

import asyncio
import logging
import os
import random
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from diloco.learner.unit.nodes.node_connection import Connection, NodePlace, connected, listening
from diloco.learner.unit.nodes.node_messages import Hello, Kind, Said
from diloco.runtime.addresses import format_address
from diloco.runtime.backoff import Backoff, Retries
from diloco.runtime.output import escaped
from diloco.runtime.process.exits import EXIT_OK
from diloco.wire.errors import WireError
from diloco.wire.tls.files import TlsFileError

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

HELLO_SECONDS: Final = 10.0
"""For connecting, for TLS, and for the first message."""
_TELL_SECONDS: Final = 1.0
"""For a last message, before a process ends."""
FIRST_PAUSE_SECONDS: Final = 0.25
_LONGEST_PAUSE_SECONDS: Final = 10.0
SCHEME: Final = "tcp://"
"""Of a store's address."""
NOT_CONNECTED: Final = (OSError, ValueError, WireError, TlsFileError)


class NodeRefusedError(RuntimeError):
    """The nodes of a learner do not go together; the text is one line."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """The store at which all processes of a learner meet."""

    host: str
    port: int
    token: str
    """Random: processes of an earlier start have another one."""
    pods: str = ""
    """In the first node: a digest of the uids of all nodes' pods."""
    listening: socket.socket | None = None
    """In the first node: where the store is to listen."""

    @property
    def url(self) -> str:
        """As text."""
        return f"{SCHEME}{self.token}@{format_address(self.host, self.port)}"


def meeting_here() -> Meeting:
    """A meeting of processes of this machine alone.

    Raises:
        NodeLinkError: no port can be had.
    """
    host = "127.0.0.1"
    store = listening(host, 0)
    return Meeting(host, int(store.getsockname()[1]), secrets.token_hex(16), listening=store)


class NodeLink:
    """Runs an event loop on a thread of its own, so that it answers whatever the process computes or waits for."""

    def __init__(self, place: NodePlace, exit_process: Callable[[int], object]) -> None:
        self._place, self._exit_process = place, exit_process
        self._connections: dict[int, Connection] = {}
        """By node."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        """Whether a connection that ends from now on is as it should be."""
        self._complaint = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nodes", daemon=True)
        self._thread.start()

    def meet(self) -> Meeting:
        """Wait until all nodes are there, for as long as it takes; returns where their processes meet.

        Raises:
            NodeLinkError: the first node's store cannot listen.
            NodeRefusedError: the first node refuses this one.
        """
        raise NotImplementedError

    def over(self) -> None:
        """In the first node: tell the others that the processes end in order, before an order ends them."""

    def fail(self, line: str) -> None:
        """Tell the other nodes how a process of this one has failed, before this process ends. Any thread."""
        self._run(self._tell(Said(Kind.ENDED, line))).result()

    def close(self) -> None:
        """Close every connection. May be called more than once."""
        if self._loop.is_closed():
            return
        self._run(self._close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, what: Coroutine[Any, Any, _T]) -> "Future[_T]":
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def _go_on(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it beside all else, until `close`. Called on the loop."""
        task = self._loop.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _close(self) -> None:
        self._ending = True
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()

    async def _tell(self, said: Said) -> None:
        self._ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(_TELL_SECONDS):
                await asyncio.gather(*(one.say(said) for one in self._connections.values()), return_exceptions=True)

    async def _hear_out(self, connection: Connection, take: Callable[[Said], None]) -> None:
        """Call ``take`` with what the other side says, until the connection ends; its ``failure`` says how."""
        try:
            while (said := await connection.next()) is not None:
                if said.kind is Kind.ENDED:
                    connection.failure = escaped(said.text)
                    break
                take(said)
        except OSError:
            pass  # `failure` says what there is to say
        except ValueError as error:
            connection.failure = told(error)

    async def _lost(self, connection: Connection) -> None:
        """End this process, as that of another node has ended."""
        if self._ending:
            return
        line = f"{connection.name}: {connection.failure}"
        _log.error("ending with the rest of this learner: %s", line)
        await self._tell(Said(Kind.ENDED, line))
        # It has not failed itself. Whatever else it does is of no use, and may never return.
        self._exit_process(EXIT_OK)

    def _complain(self, line: str) -> None:
        """Log a line, unless it was the last."""
        if line != self._complaint:
            self._complaint = line
            _log.warning("%s", line)


class OtherNode(NodeLink):
    """The end of any further node."""

    def __init__(self, place: NodePlace, exit_process: Callable[[int], object] = os._exit) -> None:
        super().__init__(place, exit_process)
        self._gone = threading.Event()

    def meet(self) -> Meeting:
        """See `NodeLink`."""
        return self._run(self._join()).result()

    def stop(self, reason: str) -> None:
        """Have the processes of all nodes end in order, or this one at once if they have. Any thread."""
        self._run(self._stop(reason))

    def wait_until_gone(self) -> None:
        """Once the processes have ended in order, wait until the first node's has ended."""
        self._gone.wait()

    async def _stop(self, reason: str) -> None:
        if self._ending:
            _log.info("stopping (%s)", reason)
            self._exit_process(EXIT_OK)
        else:
            with suppress(OSError):  # `_hear` finds that it has ended
                await self._connections[0].say(Said(Kind.STOPPING, reason))

    async def _join(self) -> Meeting:
        retries = Retries(Backoff(FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, random.random))
        where = format_address(self._place.host, self._place.port)
        while True:
            why = "it has closed the connection"
            try:
                if (meeting := await self._attempt()) is not None:
                    return meeting
            except NOT_CONNECTED as error:
                why = told(error)
            self._complain(f"waiting for the learner's first node, {where}: {why}")
            await asyncio.sleep(retries.next_seconds())

    async def _attempt(self) -> Meeting | None:
        place, connection = self._place, None
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                connection = await connected(place)
                connection.must_be(place)
                await connection.say(Hello(place.learner, place.node, place.pod, socket.gethostname()))
            said = await connection.next()
            if said is not None and said.kind is Kind.REFUSED:
                raise NodeRefusedError(f"the learner's first node refuses this one: {escaped(said.text)}")
            if said is None or said.kind is not Kind.START:
                return None
            self._connections[0] = connection
            self._go_on(self._hear(connection))
            return Meeting(place.host, said.port, said.text)
        finally:
            if connection is not None and not self._connections:
                connection.close()

    async def _hear(self, connection: Connection) -> None:
        await self._hear_out(connection, self._take)
        await self._lost(connection)
        self._gone.set()

    def _take(self, said: Said) -> None:
        if said.kind is Kind.OVER:
            self._ending = True


def told(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, TimeoutError):
        return f"no answer within {HELLO_SECONDS:g} s"
    return escaped((isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__)
