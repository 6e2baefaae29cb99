"""Transfers of one part: one call each, on a connection of their own.

A call that breaks is not begun again here: its transfer goes on in parts (`pushes`, `pulls`).
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from diloco.wire.channel import HEADER, PULL, PUSH, SERVICE, SHORT
from diloco.wire.client.calls import is_cancelled
from diloco.wire.client.lanes import Lanes
from diloco.wire.client.pulls import require_answer
from diloco.wire.convert import pack, unpack
from diloco.wire.errors import CorruptedError, UnavailableError, error_of
from diloco.wire.messages import PullHeader, PullRequest, PushHeader, PushReceipt
from diloco.wire.part_messages import PartsReceiver, part_checksum, part_message
from diloco.wire.parts import Grid


async def push_short(lanes: Lanes, header: PushHeader, payload: memoryview, seconds: float) -> PushReceipt:
    """Send an outer gradient of one part, as the header says.

    Raises:
        WireError: it did not arrive in so many seconds, or was refused.
    """
    grid = Grid(len(payload), header.part_bytes)
    message = part_message(payload, grid, 0, part_checksum(payload, grid, 0))
    async with _call(lanes, PUSH, message, seconds, ((HEADER, pack(header)),)) as call:
        return unpack(PushReceipt, await _next(call, "receipt"))


async def pull_short(
    lanes: Lanes, request: PullRequest, begin: Callable[[PullHeader], memoryview], seconds: float
) -> PullHeader | None:
    """Receive a fragment into the buffer that ``begin`` returns; None, without a buffer: it is more than one part.

    Raises:
        WireError: it did not arrive whole in so many seconds, or was refused.
    """
    async with _call(lanes, PULL, pack(request), seconds) as call:
        header = unpack(PullHeader, await _next(call, "header"))
        require_answer(request, header)
        grid = Grid(header.payload_bytes, header.part_bytes)
        if grid.count > 1:
            return None
        lanes.serving[SHORT] += 1
        try:
            receiver = PartsReceiver(begin(header), grid)
            receiver.add(0, await _next(call, "part"))
        finally:
            lanes.serving[SHORT] -= 1
        return dataclasses.replace(header, payload_digest=receiver.finish(header.payload_digest), part_bytes=0)


@contextlib.asynccontextmanager
async def _call(lanes: Lanes, method: str, message: bytes, seconds: float, metadata: Any = None) -> AsyncIterator[Any]:
    until = time.monotonic() + seconds
    begin: Any = lanes.channel(SHORT).unary_stream(f"/{SERVICE}/{method}")
    call = begin(message, timeout=seconds, metadata=metadata)
    try:
        yield call
        await call.read()  # its end, which closes it on both sides
    except grpc.aio.AioRpcError as error:
        if time.monotonic() >= until:
            lanes.leave(SHORT)  # it is silent, and gRPC would leave it only after a minute
        raise error_of(error.code(), error.details()) from None
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise UnavailableError("the connection was silent") from None  # another transfer has left it
    finally:
        call.cancel()


async def _next(call: Any, what: str) -> bytes:
    message = await call.read()
    if message is grpc.aio.EOF:
        raise CorruptedError(f"the answer had no {what}")
    data: bytes = message
    return data
