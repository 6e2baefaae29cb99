"""The workers that encode and push outer gradients.

They retry for as long as the admission that asked for the transfer lasts; whether a push still counts is for the syncer
to decide.
"""

import logging
from dataclasses import dataclass

from torch import Tensor

from diloco.core.merge.codec import Codec, CodecError
from diloco.core.merge.feedback import encode_with_feedback
from diloco.learner.link.transfer_deadlines import TransferDeadlines
from diloco.learner.link.transfers import TransferContext
from diloco.learner.mailboxes.control_outbox import ControlOutbox
from diloco.learner.mailboxes.pull_queue import PullOrder, PullQueue
from diloco.learner.mailboxes.push_queue import OuterGradient, PushQueue
from diloco.learner.mailboxes.residuals import Residuals
from diloco.wire.client.transfer_handle import TransferHandle
from diloco.wire.errors import WireError
from diloco.wire.messages import PushHeader

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PushEncoding:
    """How outer gradients are encoded."""

    codec: Codec
    feedback: Residuals | None
    """Residuals; None if the codec is used without error feedback."""


class Pusher:
    """Encodes and pushes outer gradients. Its ``run`` is the body of one or more threads."""

    def __init__(
        self,
        context: TransferContext,
        push_queue: PushQueue,
        pull_queue: PullQueue,
        control: ControlOutbox,
        encoding: PushEncoding,
    ) -> None:
        """Push for one learner; ``pull_queue``: where the merged result is to be pulled."""
        self._context = context
        self._push_queue = push_queue
        self._pull_queue = pull_queue
        self._control = control
        self._codec = encoding.codec
        self._feedback = encoding.feedback
        self._deadlines = TransferDeadlines()

    @property
    def bytes_per_second(self) -> float | None:
        """Rate of the pushes so far; None before the first measurement."""
        return self._deadlines.bytes_per_second

    def run(self) -> None:
        """Push until closed."""
        while (gradient := self._push_queue.next()) is not None:
            try:
                self._push(gradient)
            finally:
                self._push_queue.done(gradient)

    def _push(self, gradient: OuterGradient) -> None:
        context, request = self._context, gradient.request
        if context.current() != request.membership:
            return
        try:
            payload = self._encode(gradient)
        except CodecError as error:
            _log.warning("cannot send the outer gradient of fragment %d: %s", request.fragment, error)
            asked = (request.membership, request.fragment, request.version, request.attempt)
            self._control.declined(*asked, broken=True)
            self._control.post()
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
            codec=self._codec.name,
            payload_bytes=payload.numel(),
            payload_digest=b"",
            data_from=gradient.capture.data_from,
            data_to=gradient.capture.data_to,
        )
        # Before it is sent: the version may be made as soon as it arrives. Merged or not, it is to be pulled.
        self._pull_queue.post(PullOrder(request.membership, request.fragment, request.version))
        retries = context.retries()
        while not self._sent(header, payload, gradient.handle):
            with context.counts.lock:
                context.counts.retries += 1
            if context.stopped.wait(retries.next_seconds()):
                return
            if context.current() != request.membership or self._push_queue.is_superseded(gradient):
                return

    def _encode(self, gradient: OuterGradient) -> Tensor:
        if self._feedback is None:
            return self._codec.encode(gradient.capture.delta)
        request = gradient.request
        payload, residual = encode_with_feedback(
            self._codec, gradient.capture.delta, self._feedback.residual(request.fragment)
        )
        # Before it is sent: the notice of the merge may arrive before the receipt.
        self._feedback.encoded(request.fragment, request.version, residual)
        return payload

    def _sent(self, header: PushHeader, payload: Tensor, handle: TransferHandle) -> bool:
        """Send it once. Returns whether no retry is needed."""
        counts = self._context.counts
        receipt = self._context.push(header, payload.numpy().data, self._deadlines, handle)
        if isinstance(receipt, WireError):
            _log.debug("push of fragment %d failed: %s", header.fragment, receipt)
            return not receipt.retryable
        with counts.lock:
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
