"""A learner's side of transfers: what their calls (`calls`) carry.

What has arrived is kept in ``Earlier``, so that the next transfer of the same payload goes on there. Everything is on
one event loop.
"""

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from diloco.wire.channel import DEFAULT_CONNECTIONS, PULL_PARTS, PUSH_PARTS
from diloco.wire.client.calls import Calls
from diloco.wire.client.lanes import Lanes
from diloco.wire.convert import pack, unpack
from diloco.wire.errors import CorruptedError, InvalidMessageError, UnavailableError
from diloco.wire.messages import PullHeader, PullRequest, PushHeader, PushReceipt
from diloco.wire.part_messages import (
    Arrivals,
    Holds,
    PartsReceiver,
    pack_holds,
    part_checksum,
    part_message,
    unpack_from_receiver,
)
from diloco.wire.parts import Grid, PartsToSend, connections_for, grid_for, most_under_way

_UNKNOWN_BYTES: Final = 1 << 40
"""A fragment that was never pulled may be of any size."""
_LEAVING_SECONDS: Final = 10.0
"""The syncer has so long to end a call after it was told that a pull is whole."""


@dataclasses.dataclass(frozen=True, slots=True)
class _HalfPulled:
    epoch: str
    header: PullHeader
    receiver: PartsReceiver


class Earlier:
    """What a client's session said about transfers, and what earlier ones left, by fragment.

    Used on the event loop, except that the thread of the session notes what its Welcome says.
    """

    def __init__(self) -> None:
        self.connections = DEFAULT_CONNECTIONS
        """Most connections that a transfer is spread over."""
        self.bytes_per_second = 0
        """Limit of the learner's region; 0: none."""
        self.pushed: dict[int, PushHeader] = {}
        """Headers of pushes that did not end well; the syncer knows how much of them has arrived."""
        self.pulled: dict[int, _HalfPulled] = {}
        """Pulls that did not end well: at most one buffer for each fragment."""
        self.pulled_bytes: dict[int, int] = {}
        """Payload of the last pull, which says how many connections the next one is worth."""


class _Push(Calls):
    """An outer gradient on its way to the syncer."""

    def __init__(self, lanes: Lanes, header: PushHeader, payload: memoryview, *, granted: bool, again: bool) -> None:
        """``granted``: parts go when the syncer lets them come; ``again``: first it says which ones it has."""
        super().__init__(lanes, PUSH_PARTS)
        self._grid = Grid(len(payload), header.part_bytes)
        self._header = pack(header)
        self._payload = payload
        self._parts = PartsToSend(self._grid.count, most_under_way(self._grid))
        self._changed: dict[int, asyncio.Event] = {}
        """By call: set when there may be something to send on it."""
        if granted:
            self._parts.granted = 0
        self._may_begin = asyncio.Event()
        if not again:
            self._may_begin.set()

    async def _call(self, call: Any, number: int) -> None:
        began = time.monotonic()
        await call.write(self._header)
        self._parts.opened(number, time.monotonic())
        self._changed[number] = asyncio.Event()
        sending = asyncio.create_task(self._send(call, number))
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                said = unpack_from_receiver(message)
                if isinstance(said, PushReceipt):
                    self._done(said)
                    return
                if number not in self._working:
                    self._lanes.answered(time.monotonic() - began)
                self._note(number, said)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._parts.closed(number, time.monotonic())
            del self._changed[number]
            self._wake()

    def _wake(self) -> None:
        for changed in self._changed.values():
            changed.set()

    def _note(self, number: int, said: Holds) -> None:
        self._parts.acknowledged(said.ranges, time.monotonic())
        self._may_begin.set()
        if number not in self._working:
            self._answered(number)
            self._parts.reported()
        if self._parts.granted is not None:
            self._parts.granted = max(self._parts.granted, said.granted)
        self._wake()

    async def _send(self, call: Any, number: int) -> None:
        changed = self._changed[number]
        await self._may_begin.wait()
        while True:
            part = self._parts.take(number, time.monotonic())
            if part is not None:
                checksum = part_checksum(self._payload, self._grid, part)
                await call.write(part_message(self._payload, self._grid, part, checksum))
                continue
            changed.clear()
            try:
                async with asyncio.timeout(self._parts.stalled_seconds):
                    await changed.wait()
            except TimeoutError:
                continue


class _Pull(Calls):
    """A merged fragment on its way to the learner."""

    def __init__(
        self,
        lanes: Lanes,
        request: PullRequest,
        begin: Callable[[PullHeader], memoryview],
        before: _HalfPulled | None,
    ) -> None:
        """``before``: what an earlier pull of the fragment left, perhaps of another version."""
        super().__init__(lanes, PULL_PARTS)
        self._request = _named(request)
        self._begin = begin
        self._before = before
        self._header: PullHeader | None = None
        self._receiver: PartsReceiver | None = None

    @property
    def half(self) -> _HalfPulled | None:
        """What has arrived; None: nothing."""
        if self._header is None or self._receiver is None:
            return self._before
        return _HalfPulled(self._request.epoch, self._header, self._receiver)

    async def _call(self, call: Any, number: int) -> None:
        half, request = self.half, self._request
        await call.write(pack(request))
        await call.write(pack_holds(Holds([] if half is None else half.receiver.held.ranges)))
        first = await call.read()
        if first is grpc.aio.EOF:
            raise CorruptedError("the answer to a pull had no header")
        if request is not self._request:
            raise UnavailableError("the pull begins again under another name")
        receiver = self._begun(unpack(PullHeader, first))
        self._answered(number)
        arrivals = Arrivals(receiver.grid)
        telling = asyncio.create_task(_tell(call, arrivals, receiver))
        try:
            while not receiver.held.whole and (message := await call.read()) is not grpc.aio.EOF:
                arrivals.add(receiver.add(number, message))
            if receiver.held.whole and self._header is not None and not self._result.done():
                try:
                    digest = receiver.finish(self._header.payload_digest)
                except CorruptedError as error:
                    self._failed(error)  # another call would bring nothing else
                    raise
                self._left = call
                arrivals.hurry()
                self._lanes.after(_leave(call, telling))
                self._done(dataclasses.replace(self._header, payload_digest=digest, part_bytes=0))
        finally:
            if call is not self._left:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
            receiver.held.closed(number)

    def _begun(self, header: PullHeader) -> PartsReceiver:
        request = self._request
        if self._header is None:
            if header.fragment != request.fragment or header.version < request.minimum_version:
                raise InvalidMessageError(
                    f"asked for fragment {request.fragment} of version {request.minimum_version} or later, "
                    f"got fragment {header.fragment} of version {header.version}"
                )
            before = self._before
            if before is not None and before.header != header:
                # The syncer now takes parts of another payload for held, in this transfer.
                self._before, self._request = None, _named(request)
                raise UnavailableError(f"fragment {header.fragment} has a new version meanwhile")
            grid = Grid(header.payload_bytes, header.part_bytes)
            buffer = self._begin(header).cast("B")
            if len(buffer) != header.payload_bytes:
                raise InvalidMessageError(f"a buffer of {len(buffer)} bytes for a payload of {header.payload_bytes}")
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


async def push_parts(
    lanes: Lanes,
    header: PushHeader,
    payload: memoryview,
    earlier: Earlier,
    seconds: float,
) -> PushReceipt:
    """Send an outer gradient.

    Raises:
        WireError: it did not arrive in so many seconds, or was refused.
    """
    used = connections_for(len(payload), earlier.connections, lanes.answer_seconds)
    before = earlier.pushed.pop(header.fragment, None)
    again = before is not None and dataclasses.replace(before, part_bytes=0) == header
    grid = grid_for(len(payload), used, earlier.bytes_per_second)
    cut = before if before is not None and again else dataclasses.replace(header, part_bytes=grid.part_bytes)
    sending = _Push(lanes, cut, payload, granted=earlier.bytes_per_second > 0, again=again)
    earlier.pushed[header.fragment] = cut
    receipt: PushReceipt = await sending.run(used, seconds)
    earlier.pushed.pop(header.fragment, None)
    return receipt


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
    used = connections_for(expected_bytes, earlier.connections, lanes.answer_seconds)
    before = earlier.pulled.pop(request.fragment, None)
    receiving = _Pull(lanes, request, begin, before if before is not None and before.epoch == request.epoch else None)
    try:
        header: PullHeader = await receiving.run(used, seconds)
    except (CorruptedError, InvalidMessageError):
        raise  # nobody knows which part of it is wrong, or it is of a payload with more parts
    except BaseException:
        if receiving.half is not None:
            earlier.pulled[request.fragment] = receiving.half
        raise
    earlier.pulled_bytes[request.fragment] = header.payload_bytes
    return header
