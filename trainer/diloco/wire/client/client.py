"""A learner's client: a session and transfers, for use from threads.

The session has a TCP connection of its own, so that a fragment never delays a heartbeat, and so have payloads of one
part, which one call carries; if that breaks, the payload goes on in parts, as larger ones go. Nothing is retried here:
only the caller knows whether a message is still wanted.
"""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import grpc

from diloco.runtime.addresses import parse_address
from diloco.wire.channel import (
    ONE_THREAD,
    POSTED_SECONDS,
    SERVICE,
    SESSION,
    SHORT,
    client_arguments,
)
from diloco.wire.client.connections import Connections, Opening
from diloco.wire.client.diagnosis import diagnose
from diloco.wire.client.earlier import Earlier
from diloco.wire.client.lanes import Lanes
from diloco.wire.client.pulls import pull_parts
from diloco.wire.client.pushes import push_parts
from diloco.wire.client.route import Route, Target
from diloco.wire.client.session import Session
from diloco.wire.client.short import ShortCalls
from diloco.wire.client.transfer_handle import TransferHandle
from diloco.wire.errors import ClosedError, InvalidMessageError, UnavailableError, error_of
from diloco.wire.messages import Join, PullHeader, PullRequest, PushHeader, PushReceipt, Welcome
from diloco.wire.parts import grid_for
from diloco.wire.tls.tls import ClientTls

T = TypeVar("T")

_FIRST_LANE: Final = SHORT + 1
"""Number of the first connection for transfers."""


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


class _Once:
    """Where a pull is received, which is asked for once, although a short one may go on in parts."""

    def __init__(self, allocate: Callable[[PullHeader], memoryview]) -> None:
        self._allocate = allocate
        self._made: tuple[PullHeader, memoryview] | None = None

    def __call__(self, header: PullHeader) -> memoryview:
        if self._made is None:
            buffer = self._allocate(header).cast("B")
            if len(buffer) != header.payload_bytes:
                raise InvalidMessageError(f"a buffer of {len(buffer)} bytes for a payload of {header.payload_bytes}")
            self._made = header, buffer
        if self._made[0] != header:
            raise UnavailableError(f"fragment {header.fragment} has a new version meanwhile")
        return self._made[1]


class SyncClient:
    """Connections to one syncer. Used by several threads; connects only when it is used."""

    def __init__(self, options: ClientOptions) -> None:
        """Read the certificates.

        Raises:
            TlsFileError: one cannot be read.
        """
        self._options = options

        def blocking(number: int, target: Target, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
            arguments = [ONE_THREAD, *client_arguments(options.keepalive_seconds, number, target.server_name)]
            if credentials is None:
                return grpc.insecure_channel(target.address, options=arguments)
            return grpc.secure_channel(target.address, credentials, options=arguments)

        def lane(number: int, target: Target, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
            arguments = client_arguments(options.keepalive_seconds, number + _FIRST_LANE, target.server_name)
            if credentials is None:
                return grpc.aio.insecure_channel(target.address, options=arguments)
            return grpc.aio.secure_channel(target.address, credentials, options=arguments)

        self._route = Route(options.address, None if options.tls is None else options.tls.server_name)
        self._connections = Connections(Opening(blocking, lane), self._route, options.tls)
        self._closed = False
        self._earlier = Earlier()

    def open_session(self, join: Join) -> Session:
        """Begin a session. Returns at once: if the syncer cannot be reached, reading the session raises.

        Raises:
            ClosedError: the client is closed.
            UnavailableError: it is not known yet where the syncer is.
            InvalidMessageError: a value of ``join`` is out of range.
        """
        with self._errors():
            channel, over = self._connections.control()
            try:
                begin: Any = channel.stream_stream(f"/{SERVICE}/{SESSION}")
                return Session(begin, join, over, lambda: self._closed, self._welcomed)
            except BaseException:
                over()
                raise

    def push(
        self, header: PushHeader, payload: memoryview, *, deadline_seconds: float, handle: TransferHandle | None = None
    ) -> PushReceipt:
        """Send an outer gradient; blocks.

        ``payload`` is ``header.payload_bytes`` contiguous bytes that must not change meanwhile. ``handle``: with which
        the push may be withdrawn.

        Raises:
            WireError: it did not arrive, or was refused; ``error.retryable`` says whether to try again.
                ``ClosedError``: it was withdrawn.
        """
        data = payload.cast("B")
        if len(data) != header.payload_bytes:
            raise InvalidMessageError(f"a payload of {len(data)} bytes with a header for {header.payload_bytes}")
        handle, until = handle or TransferHandle(), time.monotonic() + deadline_seconds
        earlier = self._earlier
        if earlier.push_is_short(header):
            cut = replace(header, part_bytes=grid_for(len(data), 1).part_bytes)
            receipt = self._short(lambda calls: calls.push(cut, data, deadline_seconds, handle))
            if receipt is not None:
                return receipt
            earlier.pushed[header.fragment] = cut
        seconds = until - time.monotonic()
        return self._transferred(lambda lanes: push_parts(lanes, header, data, earlier, seconds), handle)

    def pull(
        self,
        request: PullRequest,
        allocate: Callable[[PullHeader], memoryview],
        *,
        deadline_seconds: float,
        handle: TransferHandle | None = None,
    ) -> PullHeader:
        """Receive a fragment into the buffer that ``allocate`` returns; blocks. The header has the payload's digest.

        ``allocate`` is called once, with a header that answers the request; an exception from it ends the pull. If the
        request is ``posted``, its version may not be made yet: the call waits until it is, or the syncer's time limit
        has passed. Until then only the connections are held, and the deadline is for what comes after that, so a call
        that is not answered at all ends ``POSTED_SECONDS`` later. ``handle``: with which the pull may be withdrawn.

        Raises:
            WireError: it did not arrive whole, or was refused; ``error.retryable`` says whether to try again.
                ``RefusedError``: the version was not made in time; ``ClosedError``: it was withdrawn.
        """
        seconds = deadline_seconds + (POSTED_SECONDS if request.posted else 0.0)
        handle, until, begin = handle or TransferHandle(), time.monotonic() + seconds, _Once(allocate)
        earlier = self._earlier
        if earlier.pull_is_short(request.fragment):
            header = self._short(lambda calls: calls.pull(request, begin, seconds, handle))
            if header is not None:
                return header
        left = until - time.monotonic()
        return self._transferred(lambda lanes: pull_parts(lanes, request, begin, earlier, left), handle)

    def why_unreachable(self) -> str | None:
        """What stands in the way of a connection, as one line; None if nothing is found. Blocks for some seconds.

        It makes a connection of its own, step by step.
        """
        try:
            target = self._route.target()
        except UnavailableError as error:
            return str(error)
        return diagnose(target.address, self._options.tls)

    def _short(self, transfer: Callable[[ShortCalls], T]) -> T | None:
        """The result of a transfer of one part; None: it broke, and goes on in parts."""
        try:
            with self._errors(), self._connections.short() as calls:
                return transfer(calls)
        except UnavailableError:
            return None

    def _transferred(self, parts: Callable[[Lanes], Coroutine[Any, Any, T]], handle: TransferHandle) -> T:
        """The result of a transfer in parts."""
        with self._errors(), self._connections.transfer(parts) as transfer:
            handle.begin(transfer)
            return transfer.result()

    def _welcomed(self, welcome: Welcome) -> None:
        self._earlier.connections = welcome.connections
        self._earlier.bytes_per_second = welcome.bytes_per_second

    def close(self) -> None:
        """Close every connection; calls under way end with ``ClosedError``."""
        self._closed = True
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn gRPC's errors into ``WireError``."""
        try:
            yield
        except grpc.RpcError as error:  # of a session that could not begin
            if self._closed:
                raise ClosedError("the client is closed") from None
            ended: Any = error  # also a grpc.Call, which the stubs do not say
            raise error_of(ended.code(), ended.details()) from None
        except UnavailableError:
            self._connections.nobody_answered()
            raise
        except concurrent.futures.CancelledError:
            what = "the client is closed" if self._closed else "the transfer was withdrawn"
            raise ClosedError(what) from None
        except ValueError:
            if self._closed:  # "Cannot invoke RPC on closed channel!"
                raise ClosedError("the client is closed") from None
            raise
