"""The first node of a learner of several: admits the others, and tells them where their processes meet."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

from diloco.learner.unit.nodes.node_connection import WAITING, Connection, NodePlace, accepted, is_address, listening
from diloco.learner.unit.nodes.node_link import (
    FIRST_PAUSE_SECONDS,
    HELLO_SECONDS,
    NOT_CONNECTED,
    Meeting,
    NodeLink,
    NodeRefusedError,
    told,
)
from diloco.learner.unit.nodes.node_messages import PROTOCOL, Kind, Said
from diloco.runtime.output import escaped

_log = logging.getLogger(__name__)


class FirstNode(NodeLink):
    """The first node's end: listens from construction until ``close``."""

    def __init__(
        self,
        place: NodePlace,
        stopping: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGTERM),
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        """``stopping``: called once another node is asked to stop.

        Raises:
            NodeLinkError: it cannot listen.
        """
        self._listening = listening(place.host, place.port)
        super().__init__(place, exit_process)
        self._stopping = stopping
        self._started = False
        self._greeting = 0
        self._all_there = threading.Event()
        self._loop.call_soon_threadsafe(lambda: self._go_on(self._accept()))

    @property
    def missing(self) -> list[int]:
        """The nodes that are not there yet."""
        return [one for one in range(1, self._place.nodes) if one not in self._connections]

    def meet(self) -> Meeting:
        """See `NodeLink`."""
        # A pod has ports of its own; several processes of one machine do not.
        host, port = (self._place.host, 0) if is_address(self._place.host) else ("localhost", self._place.port + 1)
        store, token = listening(self._place.host, port), secrets.token_hex(16)
        port = int(store.getsockname()[1])
        while True:
            self._all_there.wait()
            if self._run(self._start(Said(Kind.START, token, port))).result():
                pods = [self._place.pod, *(one.pod for _, one in sorted(self._connections.items()))]
                return Meeting(host, port, token, sha256(" ".join(pods).encode()).hexdigest()[:32], store)

    def over(self) -> None:
        """See `NodeLink`."""
        self._run(self._tell(Said(Kind.OVER))).result()

    async def _start(self, said: Said) -> bool:
        if self.missing:
            return False
        self._started = True
        for one in list(self._connections.values()):
            with suppress(OSError):  # `_hear` finds that it has ended
                await one.say(said)
        return True

    async def _accept(self) -> None:
        self._listening.setblocking(False)  # noqa: FBT003  # its only parameter
        with self._listening:
            while True:
                # Not `sock_accept`, which loses a connection if it is cancelled at the wrong moment.
                await self._readable()
                try:
                    peer, _ = self._listening.accept()
                except BlockingIOError:
                    continue  # it has gone away
                except OSError as error:
                    self._complain(f"cannot take a connection of another node: {error.strerror}")
                    await asyncio.sleep(FIRST_PAUSE_SECONDS)
                    continue
                if self._greeting < WAITING:
                    self._greeting += 1
                    # Also if it is cancelled before it begins.
                    self._go_on(self._serve(peer)).add_done_callback(_closing(peer))
                else:
                    peer.close()

    async def _readable(self) -> None:
        """Wait for a connection to take."""
        ready = asyncio.Event()
        self._loop.add_reader(self._listening, ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_reader(self._listening)

    async def _serve(self, peer: socket.socket) -> None:
        connection = None
        try:
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    connection = await accepted(peer, self._place.tls)
                    node = await self._admitted(connection)
            finally:
                self._greeting -= 1
            await self._hear(node, connection)
        except (*NOT_CONNECTED, NodeRefusedError) as error:
            self._complain(f"{'a connection' if connection is None else connection.name}: {told(error)}")
        finally:
            peer.close() if connection is None else connection.close()

    async def _admitted(self, connection: Connection) -> int:
        """The node at the other side.

        Raises:
            OSError, ValueError, IdentityError, NodeRefusedError: it is none, or not to be one.
        """
        connection.must_be(self._place)
        hello = await connection.hello()
        connection.name, connection.pod = escaped(f"node {hello.node} ({hello.host})"), hello.pod
        refusal = ""
        if hello.protocol != PROTOCOL:
            refusal = "it has another version of this program"
        elif hello.learner != self._place.learner or not 1 <= hello.node < self._place.nodes:
            mine = f"nodes 1 to {self._place.nodes - 1} of {self._place.learner}"
            refusal = escaped(f"it is node {hello.node} of {hello.learner}, and this learner has {mine}")
        if refusal:
            await connection.say(Said(Kind.REFUSED, refusal))
            raise NodeRefusedError(f"refused: {refusal}")
        if hello.node in self._connections:
            raise NodeRefusedError("refused: an earlier connection of this node has not ended")
        return hello.node

    async def _hear(self, node: int, connection: Connection) -> None:
        _log.info("%s is there", connection.name)
        self._connections[node] = connection
        if not self.missing:
            self._all_there.set()

        def take(said: Said) -> None:
            if said.kind is Kind.STOPPING:
                _log.info("%s is asked to stop (%s)", connection.name, escaped(said.text))
                self._stopping()

        await self._hear_out(connection, take)
        if self._started:
            await self._lost(connection)
        else:
            _log.info("%s has left", connection.name)
            del self._connections[node]
            self._all_there.clear()


def _closing(peer: socket.socket) -> Callable[[object], None]:
    return lambda _: peer.close()
