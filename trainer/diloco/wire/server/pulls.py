"""Pulls on the server: a merged fragment over several connections.

The calls of one pull are begun by the learner at one time and share what is still to be sent: each takes the next part
whenever its connection takes one. The fragment is looked up once, for the first of them.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

from diloco.wire.convert import pack
from diloco.wire.errors import DeadlineError, InvalidMessageError, RefusedError
from diloco.wire.messages import PullHeader, PullRequest
from diloco.wire.part_messages import Holds, part_checksum, part_message, unpack_from_receiver
from diloco.wire.parts import Grid, PartsToSend, grid_for, most_under_way
from diloco.wire.server.bandwidth import Limit
from diloco.wire.server.calls import Context, read_message
from diloco.wire.server.handler import SyncHandler
from diloco.wire.server.traffic import Parts, Way
from diloco.wire.server.transfer_terms import MOST_CALLS, TransferTerms, keep_latest
from diloco.wire.tls.tls import Peer


@dataclasses.dataclass(frozen=True, slots=True)
class _Opened:
    """What is sent."""

    header: PullHeader
    payload: memoryview
    grid: Grid
    checksums: dict[int, int]
    """Of the parts that were sent so far, to any learner."""
    parts: PartsToSend
    limit: Limit | None
    traffic: Parts

    def message(self, part: int) -> bytes:
        """A part as it is sent."""
        if part not in self.checksums:
            self.checksums[part] = part_checksum(self.payload, self.grid, part)
        return part_message(self.payload, self.grid, part, self.checksums[part])


@dataclasses.dataclass(frozen=True, slots=True)
class _Sending:
    """One of the calls of a pull."""

    context: Context
    stall: asyncio.Timeout
    reading: "asyncio.Task[None]"


class _Transfer:
    """A pull that is being served."""

    def __init__(self, asked: PullRequest, opening: "asyncio.Task[_Opened]") -> None:
        self.asked = asked
        self.opening = opening
        self.calls: dict[int, asyncio.Event] = {}
        """By number; each is set when there is something new for it."""

    def wake(self) -> None:
        for changed in self.calls.values():
            changed.set()


class PullParts:
    """All pulls. Owned by the event loop."""

    def __init__(self, handler: SyncHandler, terms: TransferTerms) -> None:
        """Nothing is sent before it is asked for."""
        self._handler = handler
        self._terms = terms
        self._stall_seconds = terms.stall_seconds
        self._numbers = itertools.count()
        self._transfers: dict[tuple[str, int, str], _Transfer] = {}
        self._whole: OrderedDict[tuple[str, int, str], None] = OrderedDict()
        """Pulls whose learner has said that it has all."""
        self._checksums: OrderedDict[tuple[bytes, int], dict[int, int]] = OrderedDict()
        """By digest of a payload and size of its parts: all learners pull a version, which is hashed for the first."""

    async def pull_parts(self, _requests: AsyncIterator[bytes], context: Context, peer: Peer) -> None:
        """Serve one call.

        Raises:
            WireError: it is not available, or the learner does not read it.
        """
        asked = await self._terms.pull_request(context, peer)
        if not asked.connections:
            await self._pull_one_part(asked, context, peer)
            return
        if not asked.transfer:
            raise InvalidMessageError("a pull without the name of its transfer")
        key = _key(asked)
        if key in self._whole:  # a call that was longer under way than the pull took
            return
        transfer = self._transfers.get(key)
        if transfer is None:
            transfer = _Transfer(asked, asyncio.create_task(self._open(asked, peer)))
            transfer.opening.add_done_callback(_quietly)
            self._transfers[key] = transfer
        elif transfer.asked != asked:
            raise RefusedError(f"a pull with another request has the name {asked.transfer!r}")
        elif len(transfer.calls) >= MOST_CALLS:
            raise RefusedError(f"{MOST_CALLS} calls serve this pull already")
        number = next(self._numbers)
        transfer.calls[number] = asyncio.Event()
        try:
            await self._serve(transfer, number, context)
        finally:
            # Nothing is awaited here: gRPC may cancel a call more than once.
            del transfer.calls[number]
            if not transfer.calls:
                del self._transfers[key]
                transfer.opening.cancel()  # does nothing once it is open

    async def _pull_one_part(self, asked: PullRequest, context: Context, peer: Peer) -> None:
        """Serve a call that is answered with a header, and with the payload if it is one part."""
        opened = await self._open(asked, peer)
        header = pack(opened.header)
        part = opened.message(0) if opened.grid.count == 1 else None
        if part is not None and opened.limit is not None:
            await opened.limit.down(len(part))
        self._terms.control(asked.learner, Way.DOWN, header)
        try:
            async with asyncio.timeout(self._stall_seconds):
                await context.write(header)
                if part is not None:
                    opened.traffic.moved(0, len(part))
                    await context.write(part)
        except TimeoutError:
            raise DeadlineError(f"the learner read nothing for {self._stall_seconds:g} s") from None

    async def _open(self, asked: PullRequest, peer: Peer) -> _Opened:
        header, payload = await self._handler.open_pull(asked, peer)
        limit = self._terms.limit_of(asked.learner)
        grid = grid_for(len(payload), asked.connections, 0 if limit is None else limit.bytes_per_second)
        header = dataclasses.replace(header, part_bytes=grid.part_bytes)
        what = (asked.incarnation, header.fragment, header.version, header.codec, header.base_version)
        traffic = self._terms.traffic.parts(asked.learner, Way.DOWN, what, grid.count)
        checksums: dict[int, int] = {}
        if header.payload_digest:
            known = header.payload_digest, grid.part_bytes
            checksums = self._checksums.get(known, checksums)
            keep_latest(self._checksums, known, checksums)
        parts = PartsToSend(grid.count, most_under_way(grid))
        return _Opened(header, payload, grid, checksums, parts, limit, traffic)

    async def _serve(self, transfer: _Transfer, number: int, context: Context) -> None:
        opened = await asyncio.shield(transfer.opening)
        opened.parts.opened(number, time.monotonic())
        reading = None
        try:
            async with asyncio.timeout(self._stall_seconds) as stall:
                before = await self._held(context, transfer.asked.learner)
                if before is None:
                    return
                self._note(transfer, opened, before)
                opened.parts.reported()
                header = pack(opened.header)
                await context.write(header)
                self._terms.control(transfer.asked.learner, Way.DOWN, header)
                reading = asyncio.create_task(self._read(transfer, opened, context))
                reading.add_done_callback(_quietly)
                reading.add_done_callback(lambda _: transfer.wake())
                await self._send(transfer, opened, number, _Sending(context, stall, reading))
            if reading.done():
                reading.result()
        except TimeoutError:
            raise DeadlineError(f"the learner read nothing for {self._stall_seconds:g} s") from None
        finally:
            if reading is not None:
                reading.cancel()
            opened.parts.closed(number, time.monotonic())
            transfer.wake()

    async def _send(self, transfer: _Transfer, opened: _Opened, number: int, call: "_Sending") -> None:
        """Send parts until the learner has all, or says no more."""
        changed, loop = transfer.calls[number], asyncio.get_running_loop()
        parts, left = opened.parts, -1
        while not parts.whole and not call.reading.done():
            part = parts.take(number, time.monotonic())
            if part is not None:
                message = opened.message(part)
                if opened.limit is not None:
                    call.stall.reschedule(None)
                    await opened.limit.down(len(message))
                    call.stall.reschedule(loop.time() + self._stall_seconds)
                # Before it is written: a learner that has it may end the call in the middle of that.
                opened.traffic.moved(part, len(message))
                await call.context.write(message)
                call.stall.reschedule(loop.time() + self._stall_seconds)
                continue
            changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(parts.stalled_seconds):
                    await changed.wait()
            if parts.left != left:
                left = parts.left
                call.stall.reschedule(loop.time() + self._stall_seconds)

    async def _read(self, transfer: _Transfer, opened: _Opened, context: Context) -> None:
        """Note what the learner has."""
        while (holds := await self._held(context, transfer.asked.learner)) is not None:
            self._note(transfer, opened, holds)

    def _note(self, transfer: _Transfer, opened: _Opened, holds: Holds) -> None:
        opened.parts.acknowledged(holds.ranges, time.monotonic())
        if opened.parts.whole:
            keep_latest(self._whole, _key(transfer.asked), None)
        transfer.wake()

    async def _held(self, context: Context, learner: str) -> Holds | None:
        message = await read_message(context)
        if message is None:
            return None
        self._terms.control(learner, Way.UP, message)
        said = unpack_from_receiver(message)
        if not isinstance(said, Holds):
            raise InvalidMessageError("a receipt for a pull")
        return said


def _key(asked: PullRequest) -> tuple[str, int, str]:
    return asked.learner, asked.incarnation, asked.transfer


def _quietly(task: "asyncio.Task[Any]") -> None:
    """Ignore how a task ended, which its calls report."""
    if not task.cancelled():
        task.exception()
