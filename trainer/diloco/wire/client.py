"""A learner's client: a session and bulk transfers, for use from threads.

Control and each bulk channel have a TCP connection of their own, so that a fragment never delays a heartbeat. Nothing
is retried here: only the caller knows whether a message is still wanted.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import grpc

from diloco.runtime.addresses import parse_address
from diloco.wire.allocator import keep_message_buffers
from diloco.wire.channel import CHUNK_BYTES, POSTED_SECONDS, SERVICE, SESSION, client_arguments
from diloco.wire.chunks import LARGEST_CHUNK_BYTES, PayloadReceiver, chunks_of
from diloco.wire.client_parts import Earlier, pull_parts, push_parts
from diloco.wire.connections import Connections, Opening
from diloco.wire.convert import pack, unpack
from diloco.wire.diagnosis import diagnose
from diloco.wire.errors import (
    ClosedError,
    CorruptedError,
    DeadlineError,
    InvalidMessageError,
    UnavailableError,
    error_of,
)
from diloco.wire.lanes import Lanes
from diloco.wire.messages import Join, PullHeader, PullRequest, PushHeader, PushReceipt, Welcome
from diloco.wire.posting import Posting
from diloco.wire.route import Route, Target
from diloco.wire.session import Session
from diloco.wire.tls import ClientTls

T = TypeVar("T")

_FIRST_LANE: Final = 1000
"""Number of the first connection for transfers in parts, so that it shares none with another channel."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to reach the syncer."""

    address: str | Path
    """``host:port`` of the syncer, or a file that contains it and may change (``wire/route.py``)."""
    tls: ClientTls | None = None
    """Certificates; read again when they have changed."""
    bulk_channels: int = 2
    """TCP connections for fragments; concurrent transfers are distributed over them."""
    chunk_bytes: int = CHUNK_BYTES
    """Data in a chunk that is sent, at most ``LARGEST_CHUNK_BYTES``."""
    keepalive_seconds: float = 10.0
    """A connection is pinged after this much silence, and counts as broken if the answer takes as long again."""

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: an option is out of range (one line).
        """
        if isinstance(self.address, str):
            parse_address(self.address)
        if not 1 <= self.bulk_channels <= 64:
            raise ValueError(f"bulk_channels {self.bulk_channels}: use 1 to 64")
        if not 1 <= self.chunk_bytes <= LARGEST_CHUNK_BYTES:
            raise ValueError(f"chunk_bytes {self.chunk_bytes}: use 1 to {LARGEST_CHUNK_BYTES}")
        if not self.keepalive_seconds > 0:
            raise ValueError(f"keepalive_seconds {self.keepalive_seconds}: use more than 0")


class SyncClient:
    """Connections to one syncer. Used by several threads; connects only when it is used."""

    def __init__(self, options: ClientOptions) -> None:
        """Read the certificates.

        Raises:
            TlsFileError: one cannot be read.
        """
        keep_message_buffers()
        self._options = options

        def channel(number: int, target: Target, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
            arguments = client_arguments(options.keepalive_seconds, number, target.server_name)
            if credentials is None:
                return grpc.insecure_channel(target.address, options=arguments)
            return grpc.secure_channel(target.address, credentials, options=arguments)

        def lane(number: int, target: Target, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
            arguments = client_arguments(options.keepalive_seconds, number + _FIRST_LANE, target.server_name)
            if credentials is None:
                return grpc.aio.insecure_channel(target.address, options=arguments)
            return grpc.aio.secure_channel(target.address, credentials, options=arguments)

        self._route = Route(options.address, None if options.tls is None else options.tls.server_name)
        self._connections = Connections(Opening(channel, lane), self._route, options.tls, options.bulk_channels)
        self._closed = False
        self._earlier = Earlier()
        self._welcome: Welcome | None = None
        """The latest: how transfers in parts are made, if the syncer takes them."""

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

    def push(self, header: PushHeader, payload: memoryview, *, deadline_seconds: float) -> PushReceipt:
        """Send an outer gradient; blocks.

        ``payload`` is ``header.payload_bytes`` contiguous bytes that must not change meanwhile.

        Raises:
            WireError: it did not arrive, or was refused; ``error.retryable`` says whether to try again.
        """
        data = payload.cast("B")
        if len(data) != header.payload_bytes:
            raise InvalidMessageError(f"a payload of {len(data)} bytes with a header for {header.payload_bytes}")
        welcome = self._welcome
        if welcome is not None and welcome.connections:

            async def work(lanes: Lanes) -> PushReceipt:
                sending = push_parts(lanes, header, data, self._earlier, welcome)
                return await _in_time(sending, deadline_seconds)

            with self._errors(), self._connections.in_parts(work) as receipt:
                return receipt.result()
        messages = itertools.chain((pack(header),), chunks_of(data, self._options.chunk_bytes))
        with self._errors(), self._connections.bulk() as channel:
            answer = channel.push(messages, timeout=deadline_seconds)
            return unpack(PushReceipt, answer)

    def pull(
        self, request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
    ) -> PullHeader:
        """Receive a fragment into the buffer that ``allocate`` returns; blocks. The header has the payload's digest.

        ``allocate`` is called once, with a header that answers the request; an exception from it ends the pull.

        Raises:
            WireError: it did not arrive whole, or was refused; ``error.retryable`` says whether to try again.
        """
        if self._in_parts:
            return self._pull_parts(request, allocate, deadline_seconds, None)
        with self._errors(), self._connections.bulk() as channel:
            call = channel.pull(pack(request), timeout=deadline_seconds)
            try:
                return _receive(call, request, allocate)
            finally:
                call.cancel()  # does nothing to a call that has ended

    def pull_posted(
        self,
        request: PullRequest,
        allocate: Callable[[PullHeader], memoryview],
        *,
        deadline_seconds: float,
        posting: Posting,
    ) -> PullHeader:
        """``pull`` a version that may not be made yet; blocks until it is, or the syncer's time limit has passed.

        ``allocate`` is called when the answer begins: until then only the connection is held. The deadline is for what
        comes after that, so a call that is not answered at all ends ``POSTED_SECONDS`` later.

        Raises:
            WireError: as for ``pull``; ``RefusedError`` if the version was not made in time, ``ClosedError`` if
                ``posting`` was withdrawn.
        """
        if self._in_parts:
            return self._pull_parts(request, allocate, POSTED_SECONDS + deadline_seconds, posting)
        with self._errors(posting), self._connections.posted() as (channel, begins):

            def begin(header: PullHeader) -> memoryview:
                begins()
                return allocate(header)

            call = channel.pull(pack(request), timeout=POSTED_SECONDS + deadline_seconds)
            posting.begin(call)
            try:
                return _receive(call, request, begin)
            finally:
                call.cancel()

    def why_unreachable(self) -> str | None:
        """What stands in the way of a connection, as one line; None if nothing is found. Blocks for some seconds.

        It makes a connection of its own, step by step. If the syncer's certificate has only the name of its host, later
        connections are checked by that.
        """
        try:
            target = self._route.target()
        except UnavailableError as error:
            return str(error)
        finding = diagnose(target.address, self._options.tls)
        if finding.by_host is not None:
            self._route.check_host(by_host=finding.by_host)
        return finding.text

    @property
    def _in_parts(self) -> int:
        """Connections for transfers in parts; 0: the syncer takes none, or has not said so yet."""
        return 0 if self._welcome is None else self._welcome.connections

    def _welcomed(self, welcome: Welcome) -> None:
        self._welcome = welcome

    def _pull_parts(
        self,
        request: PullRequest,
        allocate: Callable[[PullHeader], memoryview],
        deadline_seconds: float,
        posting: Posting | None,
    ) -> PullHeader:
        connections = self._in_parts

        async def work(lanes: Lanes) -> PullHeader:
            pulling = pull_parts(lanes, request, allocate, self._earlier, connections=connections)
            return await _in_time(pulling, deadline_seconds)

        with self._errors(posting), self._connections.in_parts(work) as pulled:
            if posting is not None:
                posting.begin(pulled)
            return pulled.result()

    def close(self) -> None:
        """Close every connection; calls under way end with ``ClosedError``."""
        self._closed = True
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _errors(self, posting: Posting | None = None) -> Iterator[None]:
        """Turn gRPC's errors into ``WireError``."""
        try:
            yield
        except grpc.RpcError as error:
            if self._closed:
                raise ClosedError("the client is closed") from None
            if posting is not None and posting.withdrawn:
                raise ClosedError("the pull was withdrawn") from None
            ended: Any = error  # also a grpc.Call, which the stubs do not say
            failure = error_of(ended.code(), ended.details())
            if isinstance(failure, UnavailableError):
                self._connections.nobody_answered()
            raise failure from None
        except UnavailableError:  # of a transfer in parts
            self._connections.nobody_answered()
            raise
        except concurrent.futures.CancelledError:
            what = "the client is closed" if self._closed else "the pull was withdrawn"
            raise ClosedError(what) from None
        except ValueError:
            if self._closed:  # "Cannot invoke RPC on closed channel!"
                raise ClosedError("the client is closed") from None
            raise


async def _in_time(transfer: Coroutine[Any, Any, T], deadline_seconds: float) -> T:
    try:
        async with asyncio.timeout(deadline_seconds):
            return await transfer
    except TimeoutError:
        raise DeadlineError(f"it took longer than {deadline_seconds:g} s") from None


def _receive(call: Any, request: PullRequest, allocate: Callable[[PullHeader], memoryview]) -> PullHeader:
    first = next(call, None)
    if first is None:
        raise CorruptedError("the answer to a pull had no header")
    header = unpack(PullHeader, first)
    if header.fragment != request.fragment or header.version < request.minimum_version:
        raise InvalidMessageError(
            f"asked for fragment {request.fragment} of version {request.minimum_version} or later, "
            f"got fragment {header.fragment} of version {header.version}"
        )
    buffer = allocate(header).cast("B")
    if len(buffer) != header.payload_bytes:
        raise InvalidMessageError(f"a buffer of {len(buffer)} bytes for a payload of {header.payload_bytes}")
    receiver = PayloadReceiver(buffer)
    for message in call:
        receiver.add(message)
    digest = receiver.finish(header.payload_digest)
    return dataclasses.replace(header, payload_digest=digest)
