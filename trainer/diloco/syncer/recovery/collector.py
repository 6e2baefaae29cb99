"""Asks learners that come back for versions that the syncer lacks, and takes what has its proof.

It serves in place of the syncer until that is over, and admits nobody. Learners that have nothing to give are told to
come again, as by a syncer that cannot be reached.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Final

import torch

from diloco.core.buffers import bytes_of, recycled
from diloco.core.fragments import Layout
from diloco.core.proof import proof_of
from diloco.core.sizes import F32
from diloco.syncer.peers.message_rate import TokenBucket
from diloco.syncer.peers.sessions import check_belongs, read_until
from diloco.syncer.recovery.gathering import Gathering, Order
from diloco.syncer.recovery.tail import MadeVersion
from diloco.syncer.store import digest_of
from diloco.wire.errors import InvalidMessageError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import (
    Declined,
    HeldWanted,
    Join,
    LearnerMessage,
    Leave,
    PullHeader,
    PullRequest,
    PushHeader,
    PushReceipt,
)
from diloco.wire.server.handler import Send
from diloco.wire.tls.tls import Peer

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.2
_COME_AGAIN = "the syncer has restarted and takes what learners hold that it lacks; join again"
_NOT_ASKED = "this fragment is not asked of you"

Take = Callable[[int, MadeVersion, torch.Tensor], Awaitable[None]]
"""Puts a fragment that has its proof in place; the tensor is the callee's from then on."""


class _Session:
    def __init__(self, send: Send) -> None:
        self.send = send
        self.over = asyncio.Event()


class _Reception:
    """An order without an outcome."""

    def __init__(self, now: float) -> None:
        self.moved_at = now
        self.buffer: torch.Tensor | None = None
        self.abandon: Callable[[], None] = lambda: None


class Collector:
    """Implements the wire's ``SyncHandler``. Owned by the event loop."""

    def __init__(  # noqa: PLR0913  # what learners are checked against, and where it goes
        self,
        *,
        job: str,
        epoch: int,
        layout: Layout,
        provable: Mapping[int, Mapping[int, MadeVersion]],
        known: frozenset[str],
        awaited: frozenset[str],
        take: Take,
        checks: Executor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Collect ``provable`` versions (by fragment and version) that the syncer made in ``epoch``.

        Learners in ``known`` are listened to; those of them in ``awaited`` may hold what is wanted. Fragments go to
        ``take``, and ``checks`` computes proofs.
        """
        self._job, self._epoch, self._layout = job, epoch, layout
        self._provable, self._known, self._take = provable, known, take
        self._checks, self._clock = checks, clock
        self._gathering = Gathering({p: tuple(versions) for p, versions in provable.items()}, awaited)
        self._sessions: dict[str, _Session] = {}
        self._receptions: dict[Order, _Reception] = {}
        self._taking: set[Order] = set()
        self._waits_since = clock()
        self._news = asyncio.Event()
        self._closed = False
        self.senders: set[str] = set()
        """Learners whose fragments were taken."""

    async def collect(self, *, patience_seconds: float, most_seconds: float, stop: asyncio.Event) -> None:
        """Collect until everything is there, nothing more can come, time is up, or ``stop`` is set.

        ``patience_seconds``: how long to wait for learners after the start and after each fragment, and for each
        order's next part; ``most_seconds``: for all of it.
        """
        began = self._waits_since = self._clock()
        try:
            while not (stop.is_set() or self._gathering.over or self._clock() - began >= most_seconds):
                self._look(patience_seconds)
                self._give_orders()
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._news.wait()
        finally:
            self._closed = True
            while self._taking:
                self._news.clear()
                await self._news.wait()
            for session in self._sessions.values():
                session.over.set()
            for order in tuple(self._receptions):
                self._drop(order)

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        """Ask a learner that joins for what it holds, and end the session once that is over.

        Raises:
            WireError: it has nothing to give and is to come again, is of another job, or breaks the protocol.
        """
        peer.must_be(join.learner, self._job)
        check_belongs(join, self._job, self._layout)
        if join.learner not in self._known or self._closed:
            raise UnavailableError(_COME_AGAIN)
        earlier = self._sessions.pop(join.learner, None)
        if earlier is not None:
            earlier.over.set()
        useful = self._gathering.joined(join.learner, self._held(join))
        self._news.set()
        if not useful:
            raise UnavailableError(_COME_AGAIN)
        session = self._sessions[join.learner] = _Session(send)
        try:
            await read_until(session.over, self._read(join.learner, inbound))
        finally:
            if self._sessions.get(join.learner) is session:
                del self._sessions[join.learner]
                self._gathering.left(join.learner)
                self._news.set()

    def accept_push(self, header: PushHeader, peer: Peer, abandon: Callable[[], None]) -> memoryview:
        """A buffer for a fragment that was asked of this learner.

        Raises:
            WireError: it was not asked of it, or is not as long as the fragment; no memory is allocated.
        """
        peer.must_be(header.learner, self._job)
        order = _order(header)
        reception = self._receptions.get(order)
        if reception is None or order not in self._gathering.under_way or self._closed:
            raise RefusedError(_NOT_ASKED)
        numel = self._layout.fragments[order.fragment].numel
        size = F32.payload_bytes(numel)
        if (header.codec, header.payload_bytes) != (F32.name, size):
            raise RefusedError(f"fragment {order.fragment} is asked for whole: {size} bytes of f32")
        if reception.buffer is not None:
            raise RefusedError("it is being received already")
        reception.buffer, reception.abandon = recycled(numel, torch.float32), abandon
        reception.moved_at = self._clock()
        return bytes_of(reception.buffer)

    def push_unwanted(self, header: PushHeader) -> str | None:
        """Why a push is of no use any more. Called whenever some of it arrives."""
        reception = self._receptions.get(_order(header))
        if reception is None or self._closed:
            return _NOT_ASKED
        reception.moved_at = self._clock()
        return None

    async def pushed(self, header: PushHeader) -> PushReceipt:
        """Compare a fragment with its proof, and put it in place."""
        order = _order(header)
        reception = self._receptions.get(order)
        taking = any(one.fragment == order.fragment for one in self._taking)
        if reception is None or reception.buffer is None or taking or self._closed:
            return PushReceipt(accepted=False, reason=_NOT_ASKED)
        made, values = self._provable[order.fragment][order.version], reception.buffer
        self._taking.add(order)
        try:
            loop = asyncio.get_running_loop()
            proven = await loop.run_in_executor(self._checks, _has_proof, values, made)
            if not proven:
                self._fail(order)
                _log.warning(
                    "%s sent something else than version %d of fragment %d; it is asked for nothing more",
                    *(order.learner, order.version, order.fragment),
                )
                return PushReceipt(accepted=False, reason="these are not the bytes that the syncer had merged")
            if self._gathering.has(order.fragment):
                return PushReceipt(accepted=False, reason=_NOT_ASKED)
            await self._take(order.fragment, made, values)
            self._gathering.received(order)  # it counts, whether or not its learner still waits for the receipt
            self._waits_since = self._clock()
            self.senders.add(order.learner)
        except BaseException:
            self._fail(order)
            raise
        finally:
            self._taking.discard(order)
            self._receptions.pop(order, None)
            self._news.set()
        return PushReceipt(accepted=True)

    def push_failed(self, header: PushHeader, reason: str) -> None:
        """Free the buffer of a push that broke off; the learner may try again while the order stands."""
        del reason  # the wire package has logged it
        reception = self._receptions.get(_order(header))
        if reception is not None:
            reception.buffer, reception.abandon = None, lambda: None

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        """Nothing can be pulled yet."""
        peer.must_be(request.learner, self._job)
        raise UnavailableError(_COME_AGAIN)

    def _held(self, join: Join) -> dict[int, int]:
        """What a learner says that it holds, by fragment, if it is of the start whose versions are wanted."""
        number = join.held_epoch.partition(".")[0]
        if number != str(self._epoch) or len(join.held) != len(self._layout.fragments):
            return {}
        return {fragment: one_more - 1 for fragment, one_more in enumerate(join.held) if one_more}

    def _look(self, patience_seconds: float) -> None:
        """Give up on whom or what nothing was heard of for too long."""
        now = self._clock()
        for order in self._gathering.under_way:
            if order not in self._taking and now - self._receptions[order].moved_at >= patience_seconds:
                _log.warning(
                    "%s does not send fragment %d; it is asked for nothing more", order.learner, order.fragment
                )
                self._fail(order)
        for order in set(self._receptions) - set(self._gathering.under_way) - self._taking:
            self._drop(order)
        if self._gathering.waiting and now - self._waits_since >= patience_seconds:
            self._gathering.wait_no_more()

    def _fail(self, order: Order) -> None:
        """Exclude a learner. Others that hold the same, and were told to come again, get time to do so."""
        self._gathering.failed(order)
        self._waits_since = self._clock()

    def _give_orders(self) -> None:
        for order in self._gathering.next_orders():
            self._receptions[order] = _Reception(self._clock())
            session = self._sessions[order.learner]
            try:
                session.send(HeldWanted(order.fragment, order.version, order.attempt))
            except WireError as error:
                _log.info("%s cannot be asked for what it holds: %s", order.learner, error)
                session.over.set()

    def _drop(self, order: Order) -> None:
        """End what is being received for an order that no longer stands."""
        self._receptions.pop(order).abandon()

    async def _read(self, learner: str, inbound: AsyncIterator[LearnerMessage]) -> None:
        bucket = TokenBucket(self._clock)
        async for message in inbound:
            if wait_seconds := bucket.wait_seconds():
                await asyncio.sleep(wait_seconds)
            if isinstance(message, Leave):
                return
            if not isinstance(message, Declined):
                raise InvalidMessageError(f"{type(message).__name__} is not expected before Welcome")
            self._gathering.declined(Order(learner, message.fragment, message.version, message.attempt))
            self._news.set()


def _order(header: PushHeader) -> Order:
    return Order(header.learner, header.fragment, header.version, header.attempt)


def _has_proof(values: torch.Tensor, made: MadeVersion) -> bool:
    return digest_of(values).hex() == made.digest and proof_of(bytes_of(values)) == made.proof
