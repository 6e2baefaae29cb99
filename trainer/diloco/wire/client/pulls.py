"""A learner's pulls: what their calls (`calls`) carry. Everything is on one event loop."""

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from diloco.wire.channel import PULL_PARTS
from diloco.wire.client.calls import Calls
from diloco.wire.client.earlier import Earlier, HalfPulled
from diloco.wire.client.lanes import Lanes
from diloco.wire.convert import pack, unpack
from diloco.wire.errors import CorruptedError, InvalidMessageError, UnavailableError
from diloco.wire.messages import PullHeader, PullRequest
from diloco.wire.part_messages import Arrivals, Holds, PartsReceiver, pack_holds
from diloco.wire.parts import Grid, connections_for, grid_for

_UNKNOWN_BYTES: Final = 1 << 40
"""A fragment that was never pulled may be of any size."""
_LEAVING_SECONDS: Final = 10.0
"""The syncer has so long to end a call after it was told that a pull is whole."""


class _Pull(Calls):
    """A merged fragment on its way to the learner."""

    def __init__(
        self,
        lanes: Lanes,
        request: PullRequest,
        begin: Callable[[PullHeader], memoryview],
        before: HalfPulled | None,
    ) -> None:
        """``before``: what an earlier pull of the fragment left, perhaps of another version."""
        super().__init__(lanes, PULL_PARTS, one_part=not request.connections)
        self._request = request if self._one_part else _named(request)
        self._begin = begin
        self._before = before
        self._header: PullHeader | None = None
        self._receiver: PartsReceiver | None = None

    @property
    def half(self) -> HalfPulled | None:
        """What has arrived of several parts; None: nothing."""
        if self._header is None or self._receiver is None or self._one_part:
            return self._before
        return HalfPulled(self._request, self._header, self._receiver)

    def _begin_call(self, channel: Any) -> Any:
        if self._one_part:
            return channel.unary_stream(self._method)(pack(self._request))
        return channel.stream_stream(self._method)()

    async def _call(self, call: Any, number: int) -> None:
        half, request, loop = self.half, self._request, asyncio.get_running_loop()
        began = loop.time()
        await call.write(pack(request))
        await call.write(pack_holds(Holds([] if half is None else half.receiver.held.ranges)))
        header = await _header(call)
        if not request.posted:  # otherwise it was waited for
            self._lanes.answered(loop.time() - began)
        if request is not self._request:
            raise UnavailableError("the pull begins again under another name")
        receiver = self._begun(header)
        self._answered(number)
        arrivals = Arrivals(receiver.grid)
        telling = asyncio.create_task(_tell(call, arrivals, receiver))
        try:
            while not receiver.held.whole and (message := await call.read()) is not grpc.aio.EOF:
                arrivals.add(receiver.add(number, message))
            if receiver.held.whole and not self._result.done():
                self._finish(receiver)
                self._left = call
                arrivals.hurry()
                self._lanes.after(_leave(call, telling))
        finally:
            if call is not self._left:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
            receiver.held.closed(number)

    async def _call_for_one_part(self, call: Any, number: int) -> None:
        header = await _header(call)
        if header.payload_bytes > header.part_bytes:
            _require_answer(self._request, header)
            self._done(None)  # as large as it is now, it goes over several connections
            return
        receiver = self._begun(header)
        self._answered(number)
        part = await call.read()
        if part is grpc.aio.EOF:
            raise CorruptedError("the answer to a pull had no part")
        receiver.add(number, part)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.read()  # its end: a call that is cancelled before costs the syncer more
        self._finish(receiver)

    def _finish(self, receiver: PartsReceiver) -> None:
        assert self._header is not None
        try:
            digest = receiver.finish(self._header.payload_digest)
        except CorruptedError as error:
            self._failed(error)  # another call would bring nothing else
            raise
        self._done(dataclasses.replace(self._header, payload_digest=digest, part_bytes=0))

    def _begun(self, header: PullHeader) -> PartsReceiver:
        request = self._request
        if self._header is None:
            _require_answer(request, header)
            before = self._before
            if before is not None and before.header != header:
                # The syncer now takes parts of another payload for held, in this transfer.
                self._before, self._request = None, _named(request)
                raise UnavailableError(f"fragment {header.fragment} has a new version meanwhile")
            grid = Grid(header.payload_bytes, header.part_bytes)
            buffer = self._begin(header)
            if before is None:
                receiver = PartsReceiver(buffer, grid)
            else:
                receiver = before.receiver
                receiver.move_to(buffer)
            self._header, self._receiver, self._before = header, receiver, None
        elif self._header != header:
            error = UnavailableError(f"fragment {header.fragment} has a new version meanwhile")
            self._failed(error)  # what was received is of no use for it
            raise error
        assert self._receiver is not None
        return self._receiver


def _require_answer(request: PullRequest, header: PullHeader) -> None:
    """Check that a pull is answered with what was asked for.

    Raises:
        InvalidMessageError: it is not.
    """
    if header.fragment != request.fragment or header.version < request.minimum_version:
        raise InvalidMessageError(
            f"asked for fragment {request.fragment} of version {request.minimum_version} or later, "
            f"got fragment {header.fragment} of version {header.version}"
        )


async def _header(call: Any) -> PullHeader:
    first = await call.read()
    if first is grpc.aio.EOF:
        raise CorruptedError("the answer to a pull had no header")
    return unpack(PullHeader, first)


async def _tell(call: Any, arrivals: Arrivals, receiver: PartsReceiver) -> None:
    """Say what has arrived on a call, and on the last one that all is here."""
    while not receiver.held.whole:
        await arrivals.pause()
        if not receiver.held.whole:
            await call.write(pack_holds(Holds(arrivals.take())))
    await call.write(pack_holds(Holds(receiver.held.ranges)))
    await call.done_writing()


async def _leave(call: Any, telling: "asyncio.Task[None]") -> None:
    """Let the syncer end a call, so that it knows that the pull is whole and takes no late call of it for a new one."""
    try:
        async with asyncio.timeout(_LEAVING_SECONDS):
            await telling
            while await call.read() is not grpc.aio.EOF:
                pass  # parts that were under way twice
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
        pass  # then it finds out in its own time
    finally:
        telling.cancel()
        call.cancel()


def _named(request: PullRequest) -> PullRequest:
    return dataclasses.replace(request, transfer=secrets.token_hex(8))


async def pull_parts(
    lanes: Lanes,
    request: PullRequest,
    begin: Callable[[PullHeader], memoryview],
    earlier: Earlier,
    seconds: float,
) -> PullHeader:
    """Receive a fragment into the buffer that ``begin`` returns; it is called once.

    Raises:
        WireError: it did not arrive whole in so many seconds, or was refused.
    """
    expected_bytes = earlier.pulled_bytes.get(request.fragment, _UNKNOWN_BYTES)
    until = time.monotonic() + seconds
    used = connections_for(expected_bytes, earlier.connections, lanes.answer_seconds)
    before = earlier.pulled.pop(request.fragment, None)
    if before is not None and before.request.epoch != request.epoch:
        before = None
    if before is not None:
        used = before.request.connections  # the payload is cut as it was
    elif grid_for(expected_bytes, used, earlier.bytes_per_second).count == 1:
        used = 0
    request = dataclasses.replace(request, connections=used)
    receiving = _Pull(lanes, request, begin, before)
    try:
        header: PullHeader | None = await receiving.run(used, seconds)
    except (CorruptedError, InvalidMessageError):
        raise  # nobody knows which part of it is wrong, or it is of a payload with more parts
    except BaseException:
        if receiving.half is not None:
            earlier.pulled[request.fragment] = receiving.half
        raise
    if header is None:
        earlier.pulled_bytes.pop(request.fragment, None)
        return await pull_parts(lanes, request, begin, earlier, until - time.monotonic())
    earlier.pulled_bytes[request.fragment] = header.payload_bytes
    return header
