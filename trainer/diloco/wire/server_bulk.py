"""Pushes and pulls on the server: streams of checked chunks between a peer and one buffer."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator

import grpc

from diloco.wire.call_timeout import Patience
from diloco.wire.chunks import PayloadReceiver, chunks_of
from diloco.wire.convert import pack, unpack
from diloco.wire.errors import DeadlineError, InvalidMessageError, RefusedError, UnavailableError, WireError
from diloco.wire.handler import SyncHandler
from diloco.wire.messages import PullRequest, PushHeader, PushReceipt
from diloco.wire.server_context import Context
from diloco.wire.strangers import Strangers, read_message
from diloco.wire.tls import Peer

_log = logging.getLogger(__name__)


class BulkCalls:
    """The calls PushFragment and PullFragment."""

    def __init__(self, handler: SyncHandler, chunk_bytes: int, stall_seconds: float, strangers: Strangers) -> None:
        """Send chunks of ``chunk_bytes``; end calls that make no progress for ``stall_seconds``."""
        self._handler = handler
        self._chunk_bytes = chunk_bytes
        self._stall_seconds = stall_seconds
        self._strangers = strangers
        self.bytes_received = 0
        self.bytes_sent = 0

    async def push(self, _requests: AsyncIterator[bytes], context: Context, peer: Peer) -> bytes:
        """Receive an outer gradient.

        Raises:
            WireError: it is not wanted or does not match its header.
        """
        header = await self._push_header(context)
        peer.must_be(header.learner)
        patience = Patience(self._stall_seconds)
        receiver = PayloadReceiver(self._handler.accept_push(header, peer, patience.cut))
        try:
            whole = await self._receive(header, receiver, context, patience)
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled: the learner hung up, or the server stops
                reason = f"the connection broke after {receiver.received_bytes} of {header.payload_bytes} bytes"
            else:
                reason = str(error) if isinstance(error, WireError) else type(error).__name__
            self._handler.push_failed(header, reason)
            raise
        # A complete push counts, whether or not the learner still waits for the receipt.
        receipt: PushReceipt = await asyncio.shield(asyncio.ensure_future(self._handler.pushed(whole)))
        return pack(receipt)

    async def pull(self, _requests: AsyncIterator[bytes], context: Context, peer: Peer) -> None:
        """Send a fragment.

        Raises:
            WireError: it is not available, or the learner does not read it.
        """
        first = await self._strangers.first_message(context, "request")
        if first is None:
            raise InvalidMessageError("a pull without a request")
        asked = unpack(PullRequest, first)
        peer.must_be(asked.learner)
        header, payload = await self._handler.open_pull(asked, peer)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._stall_seconds) as stall:
                await context.write(pack(header))
                for chunk in chunks_of(payload, self._chunk_bytes):
                    await context.write(chunk)
                    self.bytes_sent += len(chunk)
                    stall.reschedule(loop.time() + self._stall_seconds)
        except TimeoutError:
            raise DeadlineError(f"the learner read nothing for {self._stall_seconds:g} s") from None

    async def _push_header(self, context: Context) -> PushHeader:
        first = await self._strangers.first_message(context, "header")
        if first is None:
            raise InvalidMessageError("a push without a header")
        return unpack(PushHeader, first)

    async def _receive(
        self, header: PushHeader, receiver: PayloadReceiver, context: Context, patience: Patience
    ) -> PushHeader:
        """Fill the buffer; returns the header with the digest of what was received."""
        try:
            async with patience.waiting():
                while (message := await read_message(context)) is not None:
                    self.bytes_received += len(message)
                    # The rest would only take bandwidth from pushes that are still wanted.
                    unwanted = self._handler.push_unwanted(header)
                    if unwanted is not None:
                        raise RefusedError(unwanted)
                    receiver.add(message)
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
