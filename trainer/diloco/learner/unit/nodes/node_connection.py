"""A connection between two nodes of a learner: TCP that notices a lost node, and mutual TLS."""

import asyncio
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from diloco.learner.unit.nodes.node_messages import LONGEST_BYTES, Hello, Said, decoded, encoded
from diloco.runtime.addresses import format_address, listening_host
from diloco.wire.errors import IdentityError
from diloco.wire.tls.files import TlsFiles
from diloco.wire.tls.tls import Peer, identity_of

WAITING: Final = 64
"""Connections that have not been taken, or have not said who they are (ours); more are refused."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))
"""A node that is silent for 30 s is lost (ours). The last one is in milliseconds."""


class NodeLinkError(RuntimeError):
    """The first node cannot listen; the text names the address and says why."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node of a learner of several."""

    job: str
    learner: str
    node: int
    nodes: int
    host: str
    """A name or an address of the first node."""
    port: int
    """Where its first process listens."""
    pod: str = ""
    """The uid of this node's pod."""
    tls: TlsFiles | None = None
    """The learner's certificate. None: connections are not encrypted, and anyone may connect."""


@dataclass(slots=True, eq=False)
class Connection:
    """One end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    name: str
    """Of the other side, for logs."""
    pod: str = ""
    failure: str = "its connection has ended"
    """How it has failed, as it has said last."""

    async def say(self, message: Hello | Said) -> None:
        """Send a message.

        Raises:
            OSError: the connection has ended.
        """
        self.writer.write(encoded(message))
        await self.writer.drain()

    async def next(self) -> Said | None:
        """What the other side says next; None: the connection has ended.

        Raises:
            OSError: it has broken.
            ValueError: it is no message.
        """
        line = await self.reader.readline()
        return decoded(Said, line) if line else None

    async def hello(self) -> Hello:
        """The other side's first message.

        Raises:
            OSError: the connection has ended.
            ValueError: it is no such message.
        """
        line = await self.reader.readline()
        if not line:
            raise ConnectionResetError("the connection has ended")
        return decoded(Hello, line)

    def must_be(self, place: NodePlace) -> None:
        """Check that the other side's certificate is one of the learner's.

        Raises:
            IdentityError: it is not.
        """
        if place.tls is None:
            return
        certificate = self.writer.get_extra_info("peercert") or {}
        found = identity_of(value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI")
        if found is None:
            raise IdentityError("the certificate names no learner")
        Peer("", found.learner, found.job).must_be(place.learner, place.job)

    def close(self) -> None:
        """End it."""
        self.writer.transport.abort()


def is_address(host: str) -> bool:
    """Whether it is an address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there: at ``host`` if it is an address, else at every address of this pod.

    Raises:
        NodeLinkError: that is not possible.
    """
    if not is_address(host):
        host = listening_host("::")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::", backlog=WAITING)
    except OSError as error:
        why = os.strerror(error.errno or 0)  # Python's own text has the address again
        raise NodeLinkError(f"--unit: cannot listen at {format_address(host, port)} ({why})") from error


async def accepted(peer: socket.socket, tls: TlsFiles | None) -> Connection:
    """A connection that was taken, once TLS is set up.

    Raises:
        OSError: it ends.
        TlsFileError: a file cannot be used.
    """
    loop = asyncio.get_running_loop()
    context = None if tls is None else _context(tls, ssl.PROTOCOL_TLS_SERVER)
    reader = asyncio.StreamReader(LONGEST_BYTES, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, peer, ssl=context)
    return _kept_alive(Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop), "a connection"))


async def connected(place: NodePlace) -> Connection:
    """A new connection to the first node.

    Raises:
        OSError: it cannot be reached, or does not like this one's certificate.
        TlsFileError: a file cannot be used.
    """
    context = None if place.tls is None else _context(place.tls, ssl.PROTOCOL_TLS_CLIENT)
    reader, writer = await asyncio.open_connection(place.host, place.port, limit=LONGEST_BYTES)
    if context is not None:
        # In two steps: asyncio leaves a socket open if both are one, and cancelled between them.
        try:
            await writer.start_tls(context, server_hostname=place.host)
        except BaseException:
            writer.transport.abort()
            raise
    return _kept_alive(Connection(reader, writer, f"node 0 ({place.host})"))


def _context(tls: TlsFiles, side: int) -> ssl.SSLContext:
    """Made for each connection, as the files may have been replaced."""
    read = tls.read()
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # `Connection.must_be` checks who it is
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=read.ca.decode("ascii", "replace"))
    context.load_cert_chain(tls.certificate, tls.key, password="")  # none, not a secret
    return context


def _kept_alive(connection: Connection) -> Connection:
    opened = connection.writer.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # not on every system
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection
