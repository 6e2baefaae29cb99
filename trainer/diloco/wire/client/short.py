"""Transfers of one part: calls that wait in the thread of their caller, on a connection of their own.

On the event loop such a call is several tasks, and each of its messages wakes two threads: it takes twice the processor
time. A call that breaks is not begun again here: its transfer goes on in parts (`pushes`, `pulls`).
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from diloco.wire.channel import HEADER, PULL, PUSH, SERVICE
from diloco.wire.client.pulls import require_answer
from diloco.wire.client.transfer_handle import TransferHandle
from diloco.wire.convert import pack, unpack
from diloco.wire.errors import ClosedError, CorruptedError, error_of
from diloco.wire.messages import PullHeader, PullRequest, PushHeader, PushReceipt
from diloco.wire.part_messages import PartsReceiver, part_checksum, part_message
from diloco.wire.parts import Grid


class ShortCalls:
    """The calls to one target with one set of certificates. Used by several threads."""

    def __init__(self, open_channel: Callable[[], grpc.Channel]) -> None:
        self._open_channel = open_channel
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closed = False
        self._serving = 0
        """Calls that were answered and go on."""

    def push(self, header: PushHeader, payload: memoryview, seconds: float, handle: TransferHandle) -> PushReceipt:
        """Send an outer gradient of one part, as the header says.

        Raises:
            WireError: it did not arrive in so many seconds, or was refused.
        """
        grid = Grid(len(payload), header.part_bytes)
        message = part_message(payload, grid, 0, part_checksum(payload, grid, 0))
        with self._call(PUSH, message, seconds, handle, ((HEADER, pack(header)),)) as call:
            return unpack(PushReceipt, _next(call, "receipt"))

    def pull(
        self,
        request: PullRequest,
        begin: Callable[[PullHeader], memoryview],
        seconds: float,
        handle: TransferHandle,
    ) -> PullHeader | None:
        """Receive a fragment into the buffer that ``begin`` returns; None, without a buffer: it is more than one part.

        Raises:
            WireError: it did not arrive whole in so many seconds, or was refused.
        """
        with self._call(PULL, pack(request), seconds, handle) as call:
            header = unpack(PullHeader, _next(call, "header"))
            require_answer(request, header)
            grid = Grid(header.payload_bytes, header.part_bytes)
            if grid.count > 1:
                return None
            with self._served():
                receiver = PartsReceiver(begin(header), grid)
                receiver.add(0, _next(call, "part"))
            return dataclasses.replace(header, payload_digest=receiver.finish(header.payload_digest), part_bytes=0)

    def close(self) -> None:
        """Break off all calls; there are no others afterwards."""
        with self._lock:
            self._closed, channel = True, self._channel
        if channel is not None:
            channel.close()

    def _leave(self, channel: grpc.Channel) -> None:
        """Close a connection, as it is silent: the next call opens another. Not while it serves others."""
        with self._lock:
            if self._serving:
                return
            if self._channel is channel:
                self._channel = None
        channel.close()

    @contextlib.contextmanager
    def _call(
        self, method: str, message: bytes, seconds: float, handle: TransferHandle, metadata: Any = None
    ) -> Iterator[Any]:
        until = time.monotonic() + seconds
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            if self._channel is None:
                self._channel = self._open_channel()
            channel = self._channel
            begin: Any = channel.unary_stream(f"/{SERVICE}/{method}")
            call = begin(message, timeout=seconds, metadata=metadata)
        handle.begin(call)
        try:
            yield call
            next(call, None)  # its end, which closes it on both sides
        except grpc.RpcError:
            if time.monotonic() >= until:
                self._leave(channel)  # gRPC would only after a minute
            raise error_of(call.code(), call.details()) from None
        finally:
            call.cancel()

    @contextlib.contextmanager
    def _served(self) -> Iterator[None]:
        with self._lock:
            self._serving += 1
        try:
            yield
        finally:
            with self._lock:
                self._serving -= 1


def _next(call: Any, what: str) -> bytes:
    message: bytes | None = next(call, None)
    if message is None:
        raise CorruptedError(f"the answer had no {what}")
    return message
