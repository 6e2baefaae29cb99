"""Pushes and pulls on the server: streams of checked chunks between a peer and one buffer."""

import asyncio
import dataclasses
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final, TypeVar

import grpc

from diloco.wire.bandwidth import LimitOf
from diloco.wire.call_timeout import Patience
from diloco.wire.chunks import PayloadReceiver, chunks_of
from diloco.wire.convert import pack, unpack
from diloco.wire.errors import DeadlineError, InvalidMessageError, RefusedError, UnavailableError, WireError
from diloco.wire.handler import SyncHandler
from diloco.wire.messages import PullRequest, PushHeader, PushReceipt
from diloco.wire.server_context import Context
from diloco.wire.strangers import Strangers, read_message
from diloco.wire.tls import Peer
from diloco.wire.traffic import Kind, Traffic, Transfer, Way

_log = logging.getLogger(__name__)


K = TypeVar("K")
V = TypeVar("V")
KEPT: Final = 256
"""Transfers that are over of which something is known for calls that come late (ours)."""

Asked = TypeVar("Asked", PushHeader, PullRequest)
_WORDS: Final = {PushHeader: ("push", "header"), PullRequest: ("pull", "request")}
"""What a call is called, and its first message."""


def keep_latest(entries: OrderedDict[K, V], key: K, value: V) -> None:
    """Add an entry, and drop the oldest beyond ``KEPT``."""
    entries[key] = value
    while len(entries) > KEPT:
        entries.popitem(last=False)


@dataclasses.dataclass(frozen=True, slots=True)
class BulkTerms:
    """What holds for all transfers."""

    stall_seconds: float
    """A call that makes no progress for so long is ended."""
    connections: int
    """What a pull in parts is cut for."""
    limit_of: LimitOf
    traffic: Traffic
    """Counts what is transferred."""
    strangers: Strangers

    async def opening(self, expected: type[Asked], context: Context, peer: Peer) -> Asked:
        """The first message of a call: who asks for what.

        Raises:
            WireError: it does not come, cannot be read, or names a learner that the peer is not.
        """
        call, what = _WORDS[expected]
        first = await self.strangers.first_message(context, what)
        if first is None:
            raise InvalidMessageError(f"a {call} without a {what}")
        asked = unpack(expected, first)
        peer.must_be(asked.learner)
        self.control(asked.learner, Way.UP, first)
        return asked

    def control(self, learner: str, way: Way, message: bytes) -> None:
        """Count a message that is no part of a payload."""
        self.traffic.count(learner, way, Kind.CONTROL, len(message))


class BulkCalls:
    """The calls PushFragment and PullFragment."""

    def __init__(self, handler: SyncHandler, chunk_bytes: int, terms: BulkTerms) -> None:
        """Send chunks of ``chunk_bytes``."""
        self._handler = handler
        self._chunk_bytes = chunk_bytes
        self._stall_seconds = terms.stall_seconds
        self._limit_of = terms.limit_of
        self._terms = terms

    async def push(self, _requests: AsyncIterator[bytes], context: Context, peer: Peer) -> bytes:
        """Receive an outer gradient.

        Raises:
            WireError: it is not wanted or does not match its header.
        """
        header = await self._terms.opening(PushHeader, context, peer)
        patience = Patience(self._stall_seconds)
        receiver = PayloadReceiver(self._handler.accept_push(header, peer, patience.cut))
        try:
            with self._terms.traffic.transfer(header.learner, Way.UP) as transfer:
                whole = await self._receive(header, receiver, context, patience, transfer)
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled: the learner hung up, or the server stops
                reason = f"the connection broke after {receiver.received_bytes} of {header.payload_bytes} bytes"
            else:
                reason = str(error) if isinstance(error, WireError) else type(error).__name__
            self._handler.push_failed(header, reason)
            raise
        # A complete push counts, whether or not the learner still waits for the receipt.
        receipt: PushReceipt = await asyncio.shield(asyncio.ensure_future(self._handler.pushed(whole)))
        answer = pack(receipt)
        self._terms.control(header.learner, Way.DOWN, answer)
        return answer

    async def pull(self, _requests: AsyncIterator[bytes], context: Context, peer: Peer) -> None:
        """Send a fragment.

        Raises:
            WireError: it is not available, or the learner does not read it.
        """
        asked = await self._terms.opening(PullRequest, context, peer)
        header, payload = await self._handler.open_pull(asked, peer)
        loop, limit = asyncio.get_running_loop(), self._limit_of(asked.learner)
        try:
            async with asyncio.timeout(self._stall_seconds) as stall:
                begin = pack(header)
                await context.write(begin)
                self._terms.control(asked.learner, Way.DOWN, begin)
                with self._terms.traffic.transfer(asked.learner, Way.DOWN) as transfer:
                    for chunk in chunks_of(payload, self._chunk_bytes):
                        if limit is not None:
                            stall.reschedule(None)
                            await limit.down(len(chunk))
                            stall.reschedule(loop.time() + self._stall_seconds)
                        await context.write(chunk)
                        transfer.moved(len(chunk))
                        stall.reschedule(loop.time() + self._stall_seconds)
        except TimeoutError:
            raise DeadlineError(f"the learner read nothing for {self._stall_seconds:g} s") from None

    async def _receive(
        self,
        header: PushHeader,
        receiver: PayloadReceiver,
        context: Context,
        patience: Patience,
        transfer: Transfer,
    ) -> PushHeader:
        """Fill the buffer; returns the header with the digest of what was received."""
        limit = self._limit_of(header.learner)
        try:
            async with patience.waiting():
                while (message := await read_message(context)) is not None:
                    transfer.moved(len(message))
                    # The rest would only take bandwidth from pushes that are still wanted.
                    unwanted = self._handler.push_unwanted(header)
                    if unwanted is not None:
                        raise RefusedError(unwanted)
                    receiver.add(message)
                    patience.renew()
                    if limit is not None:  # what is read later is sent later
                        await limit.up(len(message))
                        patience.renew()
        except TimeoutError:
            if patience.cut_short:  # its buffer is freed now, whether or not more arrives
                raise RefusedError(self._handler.push_unwanted(header) or "it is no longer requested") from None
            text = f"nothing arrived for {self._stall_seconds:g} s after {receiver.received_bytes} bytes"
            raise DeadlineError(text) from None
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            text = f"the connection broke after {receiver.received_bytes} of {header.payload_bytes} bytes"
            raise UnavailableError(text) from None
        return dataclasses.replace(header, payload_digest=receiver.finish(header.payload_digest))
