"""The interface that a server of the wire implements: the syncer, and small ones in tests and benchmarks.

A handler gets typed messages, buffers and peers, and nothing of gRPC.
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
from diloco.wire.tls.tls import Peer

Send = Callable[[SyncerMessage], None]
"""Queues a message to the learner and returns at once; does nothing once the session has ended."""


class SyncHandler(Protocol):
    """Called on the event loop. A peer's identity has been checked; of its messages only the form has.

    A ``WireError`` raised by any method ends that call with its status and text at the learner.
    """

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        """Serve one session; returning ends it, after everything sent has gone out.

        ``inbound`` ends when the learner hangs up, its connection breaks, its queue overflows or the server stops. It
        raises ``WireError`` for an invalid message; if that is not handled, the session ends as it should.
        """

    def accept_push(self, header: PushHeader, peer: Peer, abandon: Callable[[], None]) -> memoryview:
        """A writable buffer of exactly ``header.payload_bytes`` bytes for an outer gradient.

        ``abandon``: to be called once it is no longer wanted; the push then ends and releases the buffer.

        Raises:
            WireError: it is not wanted, or has the wrong length. Raised before any memory is allocated.
        """

    def push_unwanted(self, header: PushHeader) -> str | None:
        """Why an accepted push that is being received is no longer wanted; None: it is."""

    async def pushed(self, header: PushHeader) -> PushReceipt:
        """Called when the buffer is filled and checked; ``header.payload_digest`` is the digest of its content."""

    def push_failed(self, header: PushHeader, reason: str) -> None:
        """Called when an accepted push broke off; its buffer is not written to any more."""

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        """The buffer to send, which does not change while it is referenced. A posted pull may wait here.

        Cancelled when the learner hangs up, its connection breaks or the server stops.

        Raises:
            WireError: the version is not available.
        """
