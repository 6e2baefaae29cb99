"""Pushes of outer gradients: encoded, and sent until the syncer has them.

They are retried for as long as the admission that asked for them lasts; whether one still counts is for the syncer to
decide. A newer one replaces one of its fragment that is not begun yet, so a slow link costs at most one copy of the
model on the host, beside the few that are under way.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from diloco.core.merge.codec import Codec, CodecError
from diloco.core.merge.feedback import encode_with_feedback
from diloco.learner.exchange.orders import Membership
from diloco.learner.exchange.outbox import Outbox
from diloco.learner.exchange.requests import OuterGradient
from diloco.learner.exchange.residuals import Residuals
from diloco.learner.exchange.transfers import TransferContext, TransferDeadlines, UnderWay
from diloco.wire.errors import DeadlineError, WireError
from diloco.wire.messages import PushHeader

_log = logging.getLogger(__name__)

_MOST: Final = 8
"""Most pushes at once (ours): over a far link each waits a round trip for its receipt. More would share a thin link,
and all come late."""


@dataclass(frozen=True)
class PushEncoding:
    """How outer gradients are encoded."""

    codec: Codec
    feedback: Residuals | None
    """Residuals; None if the codec is used without error feedback."""


class Pushes:
    """For each fragment at most one outer gradient that waits, and one under way, all of one session."""

    def __init__(
        self, context: TransferContext, outbox: Outbox, encoding: PushEncoding, post: Callable[[int, int], object]
    ) -> None:
        """``post``: has a version of a fragment pulled that will be made."""
        self._context = context
        self._outbox = outbox
        self._encoding = encoding
        self._post = post
        self._deadlines = TransferDeadlines()
        self._membership: Membership | None = None
        self._waiting: dict[int, OuterGradient] = {}
        self._under_way = UnderWay[int, OuterGradient](context.tasks, self._over)
        self._ended = asyncio.Event()

    @property
    def bytes_per_second(self) -> float | None:
        """Rate of the pushes so far; None before the first measurement."""
        return self._deadlines.bytes_per_second

    def session_begins(self, membership: Membership) -> None:
        """Begin an admission."""
        self._membership = membership

    def session_over(self) -> None:
        """Drop everything: who asked for it is gone."""
        self._membership = None
        self._waiting.clear()
        self._under_way.cancel()
        self._ended.set()

    def offer(self, gradient: OuterGradient) -> None:
        """Have it sent, unless its admission is over."""
        if gradient.request.membership != self._membership:
            return
        self._waiting[gradient.request.fragment] = gradient
        self._begin()

    def pending(self) -> tuple[int, ...]:
        """Fragments that wait or are under way."""
        return (*self._waiting, *self._under_way.places)

    async def until_idle(self) -> None:
        """Wait until everything is sent or given up."""
        while self._under_way.places:
            self._ended.clear()
            await self._ended.wait()

    def _begin(self) -> None:
        """Begin what can begin now, the one that has waited longest first."""
        for fragment, gradient in list(self._waiting.items()):
            if len(self._under_way.places) >= _MOST:
                return
            if self._under_way.get(fragment) is None:
                del self._waiting[fragment]
                self._under_way.start(fragment, gradient, self._push)

    def _over(self) -> None:
        """One has ended."""
        self._begin()
        self._ended.set()

    async def _push(self, gradient: OuterGradient) -> None:
        context, request = self._context, gradient.request
        try:
            payload = await self._encoded(gradient)
        except CodecError as error:
            _log.warning("cannot send the outer gradient of fragment %d: %s", request.fragment, error)
            asked = (request.membership, request.fragment, request.version, request.attempt)
            self._outbox.declined(*asked, broken=True)
            self._outbox.deliver()
            return
        header = PushHeader(
            learner=context.learner,
            incarnation=request.membership.incarnation,
            epoch=request.membership.epoch,
            fragment=request.fragment,
            version=request.version,
            attempt=request.attempt,
            base_version=gradient.capture.base_version,
            steps=gradient.capture.steps,
            tokens=gradient.capture.tokens,
            codec=self._encoding.codec.name,
            payload_bytes=payload.numel(),
            payload_digest=b"",
            data_from=gradient.capture.data_from,
            data_to=gradient.capture.data_to,
        )
        # Before it is sent: the version may be made as soon as it arrives. Merged or not, it is to be pulled.
        self._post(request.fragment, request.version)
        retries = context.retries()
        while not await self._sent(header, payload):
            context.counts.retries += 1
            await asyncio.sleep(retries.next_seconds())
            if request.fragment in self._waiting:
                return

    async def _encoded(self, gradient: OuterGradient) -> Tensor:
        codec, feedback, capture = self._encoding.codec, self._encoding.feedback, gradient.capture
        if feedback is None:
            return await self._context.compute(lambda: codec.encode(capture.delta))
        request = gradient.request
        kept = feedback.residual(request.fragment)
        payload, residual = await self._context.compute(lambda: encode_with_feedback(codec, capture.delta, kept))
        # Before it is sent: the notice of the merge may arrive before the receipt.
        feedback.encoded(request.fragment, request.version, residual)
        return payload

    async def _sent(self, header: PushHeader, payload: Tensor) -> bool:
        """Send it once. Returns whether no retry is needed."""
        context, counts = self._context, self._context.counts
        deadline = self._deadlines.seconds(header.payload_bytes, context.step_seconds())
        began = time.monotonic()
        try:
            receipt = await context.bulk.push(header, payload.numpy().data, deadline_seconds=deadline)
        except WireError as error:
            _log.debug("push of fragment %d failed: %s", header.fragment, error)
            if isinstance(error, DeadlineError):
                self._deadlines.missed(began, time.monotonic())
            return not error.retryable
        self._deadlines.took(header.payload_bytes, time.monotonic() - began)
        counts.pushes += 1
        counts.bytes_pushed += header.payload_bytes
        counts.pushes_refused += not receipt.accepted
        if not receipt.accepted:
            _log.debug(
                "the syncer refused fragment %d for version %d: %s",
                header.fragment,
                header.version,
                receipt.reason,
            )
        # The residual is not settled here, as a repeated push is refused too: FragmentReady says whether it was merged.
        return True
