"""A learner's client: a session and transfers, on one event loop.

The session has a TCP connection of its own, so that a fragment never delays a heartbeat. Nothing is retried here: only
the caller knows whether a message is still wanted. What is not wanted any more is cancelled.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from diloco.runtime.addresses import parse_address
from diloco.wire.channel import CONTROL, POSTED_SECONDS, SERVICE, SESSION, client_arguments
from diloco.wire.client.connections import Connections
from diloco.wire.client.diagnosis import diagnose
from diloco.wire.client.earlier import Earlier
from diloco.wire.client.pulls import pull_parts
from diloco.wire.client.pushes import push_parts
from diloco.wire.client.route import Route, Target
from diloco.wire.client.session import Session
from diloco.wire.errors import InvalidMessageError, UnavailableError
from diloco.wire.messages import Join, PullHeader, PullRequest, PushHeader, PushReceipt, Welcome
from diloco.wire.tls.tls import ClientTls


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to reach the syncer."""

    address: str | Path
    """``host:port`` of the syncer, or a file that contains it and may change (``wire/client/route.py``)."""
    tls: ClientTls | None = None
    """Certificates; read again when they have changed."""
    keepalive_seconds: float = 10.0
    """A connection is pinged after this much silence. The session's is broken if the answer takes as long again."""

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: an option is out of range (one line).
        """
        if isinstance(self.address, str):
            parse_address(self.address)
        if not self.keepalive_seconds > 0:
            raise ValueError(f"keepalive_seconds {self.keepalive_seconds}: use more than 0")


async def await_ends_of_calls(seconds: float) -> None:
    """Wait for all other tasks of the loop: gRPC's own, which wait for the ends of calls.

    Otherwise it would deliver these to a closed loop. Call it last.
    """
    if rest := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(rest, timeout=seconds)


class SyncClient:
    """Connections to one syncer. Used on one event loop; connects only when it is used."""

    def __init__(self, options: ClientOptions) -> None:
        """Read the certificates.

        Raises:
            TlsFileError: one cannot be read.
        """
        self._options = options

        def lane(number: int, target: Target, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
            arguments = client_arguments(options.keepalive_seconds, number, target.server_name)
            if credentials is None:
                return grpc.aio.insecure_channel(target.address, options=arguments)
            return grpc.aio.secure_channel(target.address, credentials, options=arguments)

        self._route = Route(options.address, None if options.tls is None else options.tls.server_name)
        self._connections = Connections(lane, self._route, options.tls)
        self._earlier = Earlier()

    async def open_session(self, join: Join) -> Session:
        """Begin a session.

        Raises:
            WireError: the syncer cannot be reached, or it is not known yet where it is.
            InvalidMessageError: a value of ``join`` is out of range.
        """
        self._connections.look_again()
        lanes = self._connections.take()
        begin: Any = lanes.channel(CONTROL).stream_stream(f"/{SERVICE}/{SESSION}")
        call = begin()
        call.add_done_callback(lambda _: self._connections.give(lanes))
        session = Session(call)
        try:
            await session.send(join)
        except BaseException:
            call.cancel()
            raise
        return session

    def note_terms(self, welcome: Welcome) -> None:
        """Make the next transfers as the session's Welcome says."""
        self._earlier.connections = welcome.connections
        self._earlier.bytes_per_second = welcome.bytes_per_second

    async def push(self, header: PushHeader, payload: memoryview, *, deadline_seconds: float) -> PushReceipt:
        """Send an outer gradient.

        ``payload`` is ``header.payload_bytes`` contiguous bytes that must not change meanwhile.

        Raises:
            WireError: it did not arrive, or was refused; ``error.retryable`` says whether to try again.
        """
        data = payload.cast("B")
        if len(data) != header.payload_bytes:
            raise InvalidMessageError(f"a payload of {len(data)} bytes with a header for {header.payload_bytes}")
        with self._connections.transfer() as lanes:
            return await push_parts(lanes, header, data, self._earlier, deadline_seconds)

    async def pull(
        self, request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
    ) -> PullHeader:
        """Receive a fragment into the buffer that ``allocate`` returns. The header has the payload's digest.

        ``allocate`` is called once, with a header that answers the request; an exception from it ends the pull. If the
        request is ``posted``, its version may not be made yet: the call waits until it is, or the syncer's time limit
        has passed. Until then only the connections are held, and the deadline is for what comes after that, so a call
        that is not answered at all ends ``POSTED_SECONDS`` later.

        Raises:
            WireError: it did not arrive whole, or was refused; ``error.retryable`` says whether to try again.
                ``RefusedError``: the version was not made in time.
        """

        def begin(header: PullHeader) -> memoryview:
            buffer = allocate(header).cast("B")
            if len(buffer) != header.payload_bytes:
                raise InvalidMessageError(f"a buffer of {len(buffer)} bytes for a payload of {header.payload_bytes}")
            return buffer

        seconds = deadline_seconds + (POSTED_SECONDS if request.posted else 0.0)
        with self._connections.transfer() as lanes:
            return await pull_parts(lanes, request, begin, self._earlier, seconds)

    def why_unreachable(self) -> str | None:
        """What stands in the way of a connection, as one line; None if nothing is found. Blocks for some seconds.

        It makes a connection of its own, step by step.
        """
        try:
            target = self._route.target()
        except UnavailableError as error:
            return str(error)
        return diagnose(target.address, self._options.tls)

    async def close(self) -> None:
        """Close every connection; what goes on is to be cancelled before."""
        await self._connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
