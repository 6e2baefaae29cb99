"""The syncer's server: one port for sessions, transfers and health, on the caller's event loop.

Everything that arrives is checked here; a ``SyncHandler`` decides what is wanted. A slow peer delays only its own
calls.
"""

import logging
import socket
from dataclasses import dataclass
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from diloco.runtime.addresses import listening_host, parse_address
from diloco.wire.channel import (
    PULL_PARTS,
    PUSH_PARTS,
    SERVICE,
    SESSION,
    server_arguments,
)
from diloco.wire.server.bandwidth import LimitOf, unlimited
from diloco.wire.server.calls import Caller
from diloco.wire.server.handler import SyncHandler
from diloco.wire.server.pulls import PullParts
from diloco.wire.server.pushes import PushParts
from diloco.wire.server.revocations import Revocations
from diloco.wire.server.sessions import SessionCalls
from diloco.wire.server.traffic import Traffic
from diloco.wire.server.transfer_terms import TransferTerms
from diloco.wire.tls.tls import ServerTls

_LATE_LEVEL: Final = logging.DEBUG
"""Level of refusals of late pushes and pulls: with a tiny model there are several per second."""
_GRPC_LOGGER: Final = "grpc._cython.cygrpc"


def _is_not_about_a_peer_that_is_gone(record: logging.LogRecord) -> bool:
    """False for the traceback that gRPC logs if a call's status cannot be sent because its connection has ended."""
    return not str(record.msg).startswith("ExecuteBatchError raised in core")


class ListenError(RuntimeError):
    """The server cannot listen on the address; the text names it and says why."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Server options."""

    address: str
    """``host:port``; port 0 lets the system choose."""
    tls: ServerTls | None = None
    """Certificates; None: plain text, and every client is trusted."""
    job: str | None = None
    """With ``tls``: certificates for another job are refused."""
    keepalive_seconds: float = 20.0
    """A connection is pinged after this much silence, and counts as broken if the answer takes a minute."""
    stall_seconds: float = 60.0
    """A transfer that makes no progress for this long is ended, as is a session that does not begin."""
    queued_messages: int = 4096
    """Most messages that wait to be sent to one learner; more end its session."""
    concurrent_streams: int = 32
    """Most concurrent calls on one connection; further ones wait at the learner."""
    connections: int = 1024
    """Most connections at once, of all peers together; more are closed when they arrive."""
    limit_of: LimitOf = unlimited
    """The limit on what a learner's region exchanges."""

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: an option is out of range (one line).
        """
        parse_address(self.address)
        for name in ("keepalive_seconds", "stall_seconds", "queued_messages", "concurrent_streams", "connections"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)}: use more than 0")


class SyncServer:
    """Serves a ``SyncHandler``. Used from one event loop."""

    def __init__(self, handler: SyncHandler, options: ServerOptions, traffic: Traffic | None = None) -> None:
        """Nothing is opened before ``start``. ``traffic``: counts what is sent and received."""
        self._handler = handler
        self._options = options
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._revocations = None if options.tls is None else Revocations(options.tls.revoked)
        self._traffic = Traffic() if traffic is None else traffic
        terms = TransferTerms(options.stall_seconds, options.limit_of, self._traffic)
        self._pushes = PushParts(handler, terms)
        self._pulls = PullParts(handler, terms)

    async def start(self) -> int:
        """Start to listen; returns the port.

        Raises:
            ListenError: the address is in use or is not one of this machine's.
            TlsFileError: a certificate, or the list of revoked ones, cannot be read.
        """
        logging.getLogger(_GRPC_LOGGER).addFilter(_is_not_about_a_peer_that_is_gone)
        options = self._options
        credentials = None if options.tls is None else options.tls.credentials()
        if self._revocations is not None:
            self._revocations.start()
        _check_address(options.address)
        self._server = server = grpc.aio.server(
            options=server_arguments(options.keepalive_seconds, options.concurrent_streams, options.connections)
        )
        caller = Caller(job=options.job, revocations=self._revocations)
        session = SessionCalls(self._handler, options.queued_messages, options.stall_seconds, self._traffic)
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            SESSION: grpc.stream_stream_rpc_method_handler(caller.guarded(session.session)),
            PUSH_PARTS: grpc.stream_stream_rpc_method_handler(caller.guarded(self._pushes.push_parts, _LATE_LEVEL)),
            PULL_PARTS: grpc.stream_stream_rpc_method_handler(caller.guarded(self._pulls.pull_parts, _LATE_LEVEL)),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        try:
            if credentials is None:
                port = server.add_insecure_port(options.address)
            else:
                port = server.add_secure_port(options.address, credentials)
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {options.address}: {error}") from error
        await server.start()
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self, grace_seconds: float) -> None:
        """Accept no new calls, give running ones ``grace_seconds`` to end, then break them off."""
        if self._revocations is not None:
            self._revocations.stop()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(grace_seconds)


def _check_address(address: str) -> None:
    """Check with a socket of our own whether the address can be used: gRPC would not say why it cannot.

    Raises:
        ListenError: it cannot.
    """
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(listening_host(host), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
            probe.listen(1)
    except OSError as error:
        raise ListenError(f"cannot listen on {address}: {error.strerror or error}") from error
