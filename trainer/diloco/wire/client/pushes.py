"""A learner's pushes: what their calls (`calls`) carry. Everything is on one event loop."""

import asyncio
import dataclasses
import time
from typing import Any, Final

import grpc

from diloco.wire.channel import HEADER, PUSH_PARTS
from diloco.wire.client.calls import Calls
from diloco.wire.client.earlier import Earlier
from diloco.wire.client.lanes import Lanes
from diloco.wire.convert import pack
from diloco.wire.errors import InvalidMessageError
from diloco.wire.messages import PushHeader, PushReceipt
from diloco.wire.part_messages import Holds, part_checksum, part_message, unpack_from_receiver
from diloco.wire.parts import Grid, PartsToSend, connections_for, grid_for, most_under_way

_ROUND_TRIP_SECONDS: Final = 0.005
"""So long the first parts wait for the first answer (ours): behind them it would not show how short the link is, and
too many connections would be used."""


class _Push(Calls):
    """An outer gradient on its way to the syncer."""

    def __init__(self, lanes: Lanes, header: PushHeader, payload: memoryview, *, granted: bool, again: bool) -> None:
        """``granted``: parts go when the syncer lets them come; ``again``: first it says which ones it has."""
        self._grid = Grid(len(payload), header.part_bytes)
        super().__init__(lanes, PUSH_PARTS, one_part=self._grid.count == 1)
        self._header = ((HEADER, pack(header)),)
        self._payload = payload
        self._parts = PartsToSend(self._grid.count, most_under_way(self._grid))
        self._changed: dict[int, asyncio.Event] = {}
        """By call: set when there may be something to send on it."""
        if granted:
            self._parts.granted = 0
        self._again = again
        self._may_begin = asyncio.Event()

    def _begin_call(self, channel: Any) -> Any:
        if self._one_part:
            return channel.unary_unary(self._method)(self._message(0), metadata=self._header)
        return channel.stream_stream(self._method)(metadata=self._header)

    async def _call_for_one_part(self, call: Any, number: int) -> None:
        del number
        receipt = unpack_from_receiver(await call)
        if not isinstance(receipt, PushReceipt):
            raise InvalidMessageError("the answer to a push was no receipt")
        self._done(receipt)

    async def _call(self, call: Any, number: int) -> None:
        began = time.monotonic()
        await call.wait_for_connection()
        self._parts.opened(number, time.monotonic())
        if not self._again:
            asyncio.get_running_loop().call_later(_ROUND_TRIP_SECONDS, self._may_begin.set)
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

    def _message(self, part: int) -> bytes:
        return part_message(self._payload, self._grid, part, part_checksum(self._payload, self._grid, part))

    async def _send(self, call: Any, number: int) -> None:
        changed = self._changed[number]
        await self._may_begin.wait()
        while True:
            part = self._parts.take(number, time.monotonic())
            if part is not None:
                await call.write(self._message(part))
                continue
            changed.clear()
            try:
                async with asyncio.timeout(self._parts.stalled_seconds):
                    await changed.wait()
            except TimeoutError:
                continue


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
