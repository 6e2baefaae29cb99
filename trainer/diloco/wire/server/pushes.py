"""Pushes on the server: an outer gradient over several connections into one buffer.

A transfer begins with the first of its calls. It goes on, when its calls break, with the calls that follow, for as long
as it is wanted and its learner comes back in time; only then is its buffer given back. Whatever a call brings, no more
memory is taken than that buffer and a few bytes for each part.
"""

import asyncio
import contextlib
import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import grpc

from diloco.wire.errors import DeadlineError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import PushHeader, PushKey, PushReceipt
from diloco.wire.part_messages import Holds, PartsReceiver, pack_holds, pack_receipt
from diloco.wire.parts import Grid
from diloco.wire.server.bandwidth import Limit
from diloco.wire.server.calls import Context, Patience, read_message
from diloco.wire.server.handler import SyncHandler
from diloco.wire.server.push_transfer import PushCall, PushTransfer
from diloco.wire.server.traffic import Kind, Way
from diloco.wire.server.transfer_terms import MOST_CALLS, TransferTerms, keep_latest
from diloco.wire.tls.tls import Peer


class _Refusal(NamedTuple):
    header: PushHeader
    reason: str
    until: float
    """By the event loop's clock. A push that another one was in the way of may be sent again after that."""


class PushParts:
    """All pushes. Owned by the event loop."""

    def __init__(self, handler: SyncHandler, terms: TransferTerms) -> None:
        """A transfer without calls is given up after the time after which a call without progress ends."""
        self._handler = handler
        self._terms = terms
        self._stall_seconds = terms.stall_seconds
        self._numbers = itertools.count()
        self._transfers: dict[PushKey, PushTransfer] = {}
        self._receipts: OrderedDict[PushKey, tuple[PushHeader, PushReceipt]] = OrderedDict()
        self._refusals: OrderedDict[PushKey, _Refusal] = OrderedDict()
        """So that all calls of a push are told the same: the first refusal may end the session of its learner."""
        self._finishing: set[asyncio.Task[None]] = set()

    async def push_parts(self, _requests: AsyncIterator[bytes], context: Context, peer: Peer) -> None:
        """Serve one call.

        Raises:
            WireError: the push is not wanted, or the call does not bring parts of it.
        """
        header = self._terms.push_header(context, peer)
        receipt = self._known(header)
        if receipt is None:
            transfer, call = self._begun(header.key, header, peer)
            try:
                async with self._telling(transfer, call, context):
                    receipt = await self._outcome(header.key, transfer, call, context)
            finally:
                # Nothing is awaited here: gRPC may cancel a call more than once.
                self._left(header.key, transfer, call)
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._say(context, header.learner, pack_receipt(receipt))
        except TimeoutError:
            raise DeadlineError(f"the learner read nothing for {self._stall_seconds:g} s") from None

    def _known(self, header: PushHeader) -> PushReceipt | None:
        """What was answered to a push, if it was.

        Raises:
            RefusedError: it was refused.
        """
        known = self._receipts.get(header.key)
        if known is not None and known[0] == header:
            return known[1]
        refused = self._refusals.get(header.key)
        if refused is not None and refused.header == header and asyncio.get_running_loop().time() < refused.until:
            raise RefusedError(refused.reason)
        return None

    def _begun(self, key: PushKey, header: PushHeader, peer: Peer) -> tuple[PushTransfer, PushCall]:
        """One more call of a transfer."""
        transfer = self._transfer(key, header, peer)
        call = PushCall(next(self._numbers), Patience(self._stall_seconds), transfer.grid)
        transfer.calls[call.number] = call
        return transfer, call

    async def _outcome(self, key: PushKey, transfer: PushTransfer, call: PushCall, context: Context) -> PushReceipt:
        await self._receive(key, transfer, call, context)
        return await asyncio.shield(transfer.receipt)

    @contextlib.asynccontextmanager
    async def _telling(self, transfer: PushTransfer, call: PushCall, context: Context) -> AsyncIterator[None]:
        """Meanwhile say what is held. Of one part there is nothing to say but the receipt.

        Raises:
            DeadlineError: the learner does not read it.
        """
        if transfer.grid.count == 1:
            yield
            return
        telling = asyncio.create_task(self._tell(transfer, call, context))
        try:
            yield
            await self._quiet(call, telling)
        except TimeoutError:
            raise DeadlineError(f"the learner read nothing for {self._stall_seconds:g} s") from None
        except Exception:
            with contextlib.suppress(TimeoutError):
                await self._quiet(call, telling)
            raise
        finally:
            telling.cancel()

    async def _quiet(self, call: PushCall, telling: "asyncio.Task[None]") -> None:
        """Let what is being written end: gRPC would not end a call in the middle of its first message.

        Raises:
            TimeoutError: the learner does not read it.
        """
        if not call.telling:
            telling.cancel()
        call.over = True
        async with asyncio.timeout(self._stall_seconds):
            await asyncio.wait({telling})

    def _transfer(self, key: PushKey, header: PushHeader, peer: Peer) -> PushTransfer:
        transfer = self._transfers.get(key)
        if transfer is None:
            grid, limit = Grid(header.payload_bytes, header.part_bytes), self._terms.limit_of(header.learner)
            transfer = PushTransfer(header, grid, limit)
            try:
                buffer = self._handler.accept_push(header, peer, self._abandon(key, transfer))
            except RefusedError as error:
                until = asyncio.get_running_loop().time() + self._stall_seconds
                keep_latest(self._refusals, key, _Refusal(header, str(error), until))
                raise
            transfer.receiver = PartsReceiver(buffer, grid)
            transfer.traffic = self._terms.traffic.parts(header.learner, Way.UP, key, grid.count)
            self._transfers[key] = transfer
            if limit is not None and grid.count > 1:  # one part is on its way already
                transfer.granting = asyncio.create_task(self._grant(transfer, limit))
        elif transfer.header != header:
            raise RefusedError(f"a push of fragment {header.fragment} with another header is under way")
        elif len(transfer.calls) >= MOST_CALLS:
            raise RefusedError(f"{MOST_CALLS} calls bring this push already")
        if transfer.giving_up is not None:
            transfer.giving_up.cancel()
            transfer.giving_up = None
        return transfer

    async def _receive(self, key: PushKey, transfer: PushTransfer, call: PushCall, context: Context) -> None:
        """Receive parts until the transfer is over."""
        try:
            async with call.patience.waiting():
                while not transfer.over:
                    message = await read_message(context)
                    if not transfer.over:  # otherwise another call has brought the rest, or the buffer is not ours now
                        size = self._take(transfer, call, message)
                        if transfer.limit is not None and transfer.came > transfer.granted:
                            call.patience.renew()
                            await transfer.limit.up(size)  # what is read later is sent later
                        if transfer.held.whole:
                            self._whole(key, transfer, call)
                        else:
                            call.patience.renew()
        except TimeoutError:
            if not transfer.over:
                text = f"nothing arrived for {self._stall_seconds:g} s; {transfer.missing}"
                raise DeadlineError(text) from None
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            raise UnavailableError("the connection broke") from None
        except WireError as error:
            if not error.retryable:
                self._fail(key, transfer, error)
            raise

    def _take(self, transfer: PushTransfer, call: PushCall, message: bytes | None) -> int:
        """Put a part in its place; returns the length of its message."""
        if message is None:
            raise UnavailableError(f"the push ended too early; {transfer.missing}")
        # The rest would only take bandwidth from pushes that are still wanted.
        unwanted = self._handler.push_unwanted(transfer.header)
        if unwanted is not None:
            self._terms.traffic.count(transfer.header.learner, Way.UP, Kind.AGAIN, len(message))
            raise RefusedError(unwanted)
        transfer.came += 1
        part = transfer.receiver.add(call.number, message)
        transfer.traffic.moved(part, len(message))
        call.arrivals.add(part)
        return len(message)

    async def _tell(self, transfer: PushTransfer, call: PushCall, context: Context) -> None:
        """Say what is held: first everything, then what this call brings."""
        with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError):  # the reading side says why
            learner = transfer.header.learner
            await self._say(context, learner, pack_holds(Holds(transfer.held.ranges, transfer.granted)))
            while not call.over:
                call.telling = False
                await call.arrivals.pause()
                call.telling = True
                await self._say(context, learner, pack_holds(Holds(call.arrivals.take(), transfer.granted)))

    async def _say(self, context: Context, learner: str, message: bytes) -> None:
        await context.write(message)
        self._terms.control(learner, Way.DOWN, message)

    async def _grant(self, transfer: PushTransfer, limit: Limit) -> None:
        """Let parts come as fast as the region's limit allows."""
        for part in range(transfer.grid.count):
            await limit.up(transfer.grid.size(part))
            transfer.granted += 1
            calls = list(transfer.calls.values())
            for call in calls:
                call.patience.renew()
            if calls:  # one is enough: what is granted counts for all
                calls[part % len(calls)].arrivals.wake()

    def _whole(self, key: PushKey, transfer: PushTransfer, call: PushCall) -> None:
        if transfer.granting is not None:
            transfer.granting.cancel()
        transfer.over = True  # it stays known until there is a receipt, for calls that come late
        transfer.end_calls(but=call)
        finishing = asyncio.create_task(self._finish(key, transfer))
        self._finishing.add(finishing)
        finishing.add_done_callback(self._finishing.discard)

    async def _finish(self, key: PushKey, transfer: PushTransfer) -> None:
        """Hand it over. A complete push counts, whether or not the learner still waits for the receipt."""
        try:
            await self._hand_over(key, transfer)
        finally:
            self._transfers.pop(key, None)

    async def _hand_over(self, key: PushKey, transfer: PushTransfer) -> None:
        try:
            digest = transfer.receiver.finish(transfer.header.payload_digest)
        except WireError as error:
            self._handler.push_failed(transfer.header, str(error))
            transfer.receipt.set_exception(error)
            return
        try:
            receipt = await self._handler.pushed(dataclasses.replace(transfer.header, payload_digest=digest))
        except Exception as error:  # noqa: BLE001  # it ends every call of the transfer, as it would end a single one
            transfer.receipt.set_exception(error)
            return
        keep_latest(self._receipts, key, (transfer.header, receipt))
        transfer.receipt.set_result(receipt)

    def _abandon(self, key: PushKey, transfer: PushTransfer) -> Callable[[], None]:
        def abandon() -> None:
            if not transfer.over:
                self._over(key, transfer)
                # Not within the handler's own work, which calls this.
                asyncio.get_running_loop().call_soon(self._abandoned, transfer)

        return abandon

    def _abandoned(self, transfer: PushTransfer) -> None:
        reason = self._handler.push_unwanted(transfer.header) or "it is no longer requested"
        self._end(transfer, RefusedError(reason))

    def _left(self, key: PushKey, transfer: PushTransfer, call: PushCall) -> None:
        del transfer.calls[call.number]
        transfer.held.closed(call.number)
        if not transfer.calls and not transfer.over:
            gone = UnavailableError(f"the connections broke; {transfer.missing}")
            loop = asyncio.get_running_loop()
            transfer.giving_up = loop.call_later(self._stall_seconds, self._fail, key, transfer, gone)

    def _fail(self, key: PushKey, transfer: PushTransfer, error: WireError) -> None:
        if not transfer.over:
            self._over(key, transfer)
            self._end(transfer, error)

    def _over(self, key: PushKey, transfer: PushTransfer) -> None:
        """Write no more into the buffer."""
        transfer.over = True
        if transfer.granting is not None:
            transfer.granting.cancel()
        self._transfers.pop(key, None)
        if transfer.giving_up is not None:
            transfer.giving_up.cancel()

    def _end(self, transfer: PushTransfer, error: WireError) -> None:
        transfer.receipt.set_exception(error)
        transfer.end_calls()
        self._handler.push_failed(transfer.header, str(error))
