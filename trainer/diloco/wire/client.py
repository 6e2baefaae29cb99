"""A learner's client: a session and bulk transfers, for use from threads.

Control and each bulk channel have a TCP connection of their own, so that a fragment never delays a heartbeat. Nothing
is retried here: only the caller knows whether a message is still wanted.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import grpc

from diloco.runtime.addresses import parse_address
from diloco.wire.allocator import keep_message_buffers
from diloco.wire.channel import CHUNK_BYTES, POSTED_SECONDS, SERVICE, SESSION, client_arguments
from diloco.wire.chunks import LARGEST_CHUNK_BYTES, PayloadReceiver, chunks_of
from diloco.wire.connections import Connections
from diloco.wire.convert import pack, unpack
from diloco.wire.errors import ClosedError, CorruptedError, InvalidMessageError, error_of
from diloco.wire.messages import Join, PullHeader, PullRequest, PushHeader, PushReceipt
from diloco.wire.posting import Posting
from diloco.wire.session import Session
from diloco.wire.tls import ClientTls


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to reach the syncer."""

    address: str
    """``host:port`` of the syncer."""
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

        def channel(number: int, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
            arguments = client_arguments(options.keepalive_seconds, number)
            if credentials is None:
                return grpc.insecure_channel(options.address, options=arguments)
            return grpc.secure_channel(options.address, credentials, options=arguments)

        self._connections = Connections(channel, options.tls, options.bulk_channels)
        self._closed = False

    def open_session(self, join: Join) -> Session:
        """Begin a session. Returns at once: if the syncer cannot be reached, reading the session raises.

        Raises:
            ClosedError: the client is closed.
            InvalidMessageError: a value of ``join`` is out of range.
        """
        with self._errors():
            channel, over = self._connections.control()
            try:
                return Session(channel.stream_stream(f"/{SERVICE}/{SESSION}"), join, over, lambda: self._closed)
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
            raise error_of(ended.code(), ended.details()) from None
        except ValueError:
            if self._closed:  # "Cannot invoke RPC on closed channel!"
                raise ClosedError("the client is closed") from None
            raise


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
