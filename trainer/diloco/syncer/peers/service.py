"""Implements the wire's service: sessions, pushes and pulls, each checked before it is trusted or memory allocated.

It makes no decisions: a complete push becomes an event, and the engine's answer is sent by other modules.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from diloco.core.buffers import bytes_of
from diloco.core.engine.events import FragmentArrived, FragmentDeclined, FragmentLate
from diloco.core.merge.codec import CodecError
from diloco.core.sizes import BLOCK, Encoding
from diloco.syncer.peers.claims import ClaimError
from diloco.syncer.peers.collaborators import Collaborators
from diloco.syncer.peers.inbox import PushRefusedError
from diloco.syncer.peers.sessions import Send, Sessions
from diloco.wire.errors import RefusedError
from diloco.wire.messages import Join, LearnerMessage, PullHeader, PullRequest, PushHeader, PushReceipt
from diloco.wire.tls.tls import Peer

CHECKED_AT_ONCE_BYTES: Final = 256 << 10
"""A payload of at most this size and one block is checked on the event loop, in 0.1 ms; handing it to a thread would
cost 0.2 ms."""
SPARSE_CHECKED_AT_ONCE_BYTES: Final = 32 << 10
"""The same of a sparse payload, whose places are decoded: 0.3 to 0.4 ms for 15 to 29 kB, 3 ms for 230 kB."""


def checked_at_once(encoding: Encoding, payload_bytes: int, numel: int) -> bool:
    """Whether the check of a payload is short enough for the event loop."""
    most = SPARSE_CHECKED_AT_ONCE_BYTES if encoding.kept else CHECKED_AT_ONCE_BYTES
    return payload_bytes <= most and numel <= BLOCK


class SyncService:
    """Implements the wire's ``SyncHandler``. Everything is called on the event loop."""

    def __init__(self, collaborators: Collaborators, sessions: Sessions) -> None:
        self._sessions = sessions
        self._job, self._epoch = collaborators.job, collaborators.epoch
        self._layout, self._codec, self._store = collaborators.layout, collaborators.codec, collaborators.store
        self._inbox, self._posted, self._loads = collaborators.inbox, collaborators.posted, collaborators.loads
        self._claims, self._checks = collaborators.claims, collaborators.checks
        self._dealing = collaborators.dealing
        self._meter, self._metrics, self._post = collaborators.meter, collaborators.metrics, collaborators.post

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        """Serve one session until it ends.

        Raises:
            WireError: the process does not belong to this job, or breaks the protocol.
        """
        peer.must_be(join.learner, self._job)
        await self._sessions.serve(join, inbound, send)

    def accept_push(self, header: PushHeader, peer: Peer, abandon: Callable[[], None]) -> memoryview:
        """A buffer of exactly the payload's size.

        Raises:
            WireError: this push was not requested, or does not match its request; no memory is allocated.
        """
        peer.must_be(header.learner, self._job)
        try:
            self._check_current(header)
            self._claims.check_work(header)
            buffer = bytes_of(self._inbox.open(header, abandon))
        except ClaimError as error:
            self._metrics.pushes_refused.inc()
            self._sessions.end(header.learner, header.incarnation, str(error))
            raise RefusedError(str(error)) from None
        except (PushRefusedError, RefusedError) as error:
            self._metrics.pushes_refused.inc()
            self._note_late(header)
            raise RefusedError(str(error)) from error
        self._meter.push_began(header.learner)
        return buffer

    async def pushed(self, header: PushHeader) -> PushReceipt:
        """Check a push that was received in full, and post it to the engine."""
        self._meter.push_ended(header.learner, header.payload_bytes)
        key = header.key
        payload = self._inbox.received(key)
        if payload is None:
            self._inbox.abandon(key)
            self._note_late(header)
            return self._not_accepted("it is no longer requested")
        numel = self._layout.fragments[header.fragment].numel
        try:
            if checked_at_once(self._codec.encoding, payload.nbytes, numel):
                self._codec.check(payload, numel)
            else:
                await asyncio.get_running_loop().run_in_executor(self._checks, self._codec.check, payload, numel)
        except CodecError as error:
            self._inbox.abandon(key)
            return self._not_accepted(str(error))
        except BaseException:
            self._inbox.abandon(key)
            raise
        if not self._sessions.current(header.learner, header.incarnation) or not self._inbox.accept(key):
            self._inbox.abandon(key)
            return self._not_accepted("it is no longer requested")
        if not self._dealing.accept(header):
            self._inbox.drop(key)
            self._post(FragmentDeclined(*key))
            return self._not_accepted("others were dealt what it was trained on")
        self._post(
            FragmentArrived(
                header.learner,
                header.incarnation,
                header.fragment,
                header.version,
                header.attempt,
                header.base_version,
                header.steps,
                header.tokens,
                header.payload_bytes,
                header.payload_digest.hex(),
            )
        )
        return PushReceipt(accepted=True)

    def push_unwanted(self, header: PushHeader) -> str | None:
        """Why a push under way is no longer of use: its round is over."""
        return None if self._inbox.received(header.key) is not None else "it is no longer requested"

    def push_failed(self, header: PushHeader, reason: str) -> None:
        """Free the buffer of a push that broke off; the learner may retry it."""
        del reason  # the wire package has logged it
        self._meter.push_ended(header.learner, 0)
        self._inbox.abandon(header.key)
        self._note_late(header)

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        """The current version of a fragment: the update from what the learner holds, or the whole fragment.

        The view's content does not change while it is read. A pull that was posted for the next version waits for it,
        and one of a learner that loads for its turn.

        Raises:
            WireError: the learner has no session, its turn has not come, or the version does not exist.
        """
        peer.must_be(request.learner, self._job)
        self._check_current(request)
        if request.fragment >= len(self._layout.fragments):
            raise RefusedError(f"fragment {request.fragment} of {len(self._layout.fragments)}: they count from 0")
        await self._loads.turn(request.learner)
        self._check_current(request)
        current = self._store.current(request.fragment)
        if request.posted and request.minimum_version == current.version + 1:
            await self._posted.next_version(request.learner, request.incarnation, request.fragment)
            self._check_current(request)
            current = self._store.current(request.fragment)
        if request.minimum_version > current.version:
            raise RefusedError(
                f"fragment {request.fragment} is at version {current.version}, not yet at {request.minimum_version}"
            )
        update = current.update
        if update is None or update.base_version != request.held_version:
            self._metrics.pulls.labels("whole").inc()
            whole = current.view
            return PullHeader(request.fragment, current.version, len(whole), current.digest), whole
        self._metrics.pulls.labels("update").inc()
        payload = update.view
        header = PullHeader(
            request.fragment,
            current.version,
            len(payload),
            update.digest,
            codec=update.codec,
            base_version=update.base_version,
            result_digest=current.digest,
        )
        return header, payload

    def _check_current(self, message: PushHeader | PullRequest) -> None:
        if message.epoch != self._epoch:
            raise RefusedError(f"syncer epoch is {self._epoch}, not {message.epoch!r}: the syncer has restarted")
        if not self._sessions.current(message.learner, message.incarnation):
            raise RefusedError(f"incarnation {message.incarnation} of {message.learner} has no session here")

    def _note_late(self, header: PushHeader) -> None:
        """Tell the engine how long the learner took, which it also learns from pushes that come after their round."""
        key = header.key
        if self._sessions.current(header.learner, header.incarnation) and self._inbox.lapsed(key):
            self._post(FragmentLate(*key))

    def _not_accepted(self, reason: str) -> PushReceipt:
        self._metrics.pushes_refused.inc()
        return PushReceipt(accepted=False, reason=reason)
