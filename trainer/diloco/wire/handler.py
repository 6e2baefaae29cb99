"""What the wire asks of whoever serves it. The syncer implements it; tests and benchmarks have small ones of their own.

It must not know gRPC: a handler sees typed messages, buffers and peers.
"""

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from diloco.wire.messages import (
    Join,
    LearnerMessage,
    PullHeader,
    PullRequest,
    PushHeader,
    PushReceipt,
    SyncerMessage,
)
from diloco.wire.tls import Peer

Send = Callable[[SyncerMessage], None]
"""Queues a message to the learner and returns at once; does nothing once the session has ended."""


class SyncHandler(Protocol):
    """Called on the event loop. Whom a peer may speak for has been checked; what it says has not, beyond its form.

    A ``WireError`` raised by any method ends that call with its status and text at the learner.
    """

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        """Serve one session; returning ends it, after what was sent has gone out.

        ``inbound`` ends when the learner hangs up, its connection breaks, its queue overflows or the server stops, and
        raises ``WireError`` when something comes that is no message; left unhandled that ends the session as it should.
        """

    def accept_push(self, header: PushHeader, peer: Peer, abandon: Callable[[], None]) -> memoryview:
        """A writable buffer of exactly ``header.payload_bytes`` bytes for an outer gradient.

        ``abandon``: to be called once nobody waits for it any more; the push ends and lets go of the buffer.

        Raises:
            WireError: it is not wanted, or not as long as it must be. Raised before any memory is taken.
        """

    def push_unwanted(self, header: PushHeader) -> str | None:
        """Why nobody waits any more for an accepted push that is coming in; None: somebody does."""

    async def pushed(self, header: PushHeader) -> PushReceipt:
        """The buffer is filled and checked; ``header.payload_digest`` is the digest of what it holds."""

    def push_failed(self, header: PushHeader, reason: str) -> None:
        """An accepted push broke off; its buffer is not written to any more."""

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        """What to send: a buffer that nobody changes while it is referenced. May take its time where it was posted.

        Cancelled when the learner hangs up, its connection breaks or the server stops.

        Raises:
            WireError: it cannot be had.
        """
