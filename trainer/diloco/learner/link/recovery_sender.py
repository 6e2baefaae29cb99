"""The workers that send held fragments to a restarted syncer, which lacks them."""

import contextlib
import logging
from typing import Final

from torch import Tensor

from diloco.core.buffers import bytes_of
from diloco.core.sizes import F32
from diloco.learner.link.transfer_deadlines import TransferDeadlines
from diloco.learner.link.transfers import TransferContext
from diloco.learner.mailboxes.recovery_orders import HeldFragments, RecoveryOrder, RecoveryOrders
from diloco.wire.errors import WireError
from diloco.wire.messages import Declined, PushHeader

_log = logging.getLogger(__name__)

_TRIES: Final = 20
_PAUSE_SECONDS: Final = 0.05
"""A fragment that is being swapped in is nowhere for a moment."""


class RecoverySender:
    """Sends what is asked for. Its ``run`` is the body of one or more threads."""

    def __init__(self, context: TransferContext, orders: RecoveryOrders, fragments: HeldFragments) -> None:
        self._context = context
        self._orders = orders
        self._fragments = fragments
        self._deadlines = TransferDeadlines()

    def run(self) -> None:
        """Send until closed."""
        while (order := self._orders.next()) is not None:
            self._send(order)

    def _send(self, order: RecoveryOrder) -> None:
        found, wanted = self._found(order), order.wanted
        if found is None:
            with contextlib.suppress(WireError):  # then its session is over, and so is the order
                order.decline(Declined(0, wanted.fragment, wanted.version, wanted.attempt))
            return
        epoch, values = found
        payload = bytes_of(values)
        header = PushHeader(
            learner=self._context.learner,
            incarnation=0,
            epoch=epoch,
            fragment=wanted.fragment,
            version=wanted.version,
            attempt=wanted.attempt,
            base_version=wanted.version,
            steps=0,
            tokens=0,
            codec=F32.name,
            payload_bytes=len(payload),
        )
        retries = self._context.retries()
        while self._orders.is_current(order) and not self._sent(header, payload):
            if self._context.stopped.wait(retries.next_seconds()):
                return

    def _found(self, order: RecoveryOrder) -> tuple[str, Tensor] | None:
        for _ in range(_TRIES):
            found = self._fragments.find(order.wanted.fragment, order.wanted.version)
            if found is not None or self._context.stopped.wait(_PAUSE_SECONDS):
                return found
        return None

    def _sent(self, header: PushHeader, payload: memoryview) -> bool:
        """Send it once. Returns whether no retry is needed."""
        receipt = self._context.push(header, payload, self._deadlines)
        if isinstance(receipt, WireError):
            _log.debug("fragment %d could not be sent to the restarted syncer: %s", header.fragment, receipt)
            return not receipt.retryable
        if receipt.accepted:
            _log.info("sent version %d of fragment %d, which the syncer lacked", header.version, header.fragment)
        else:
            _log.warning("the syncer refused fragment %d as it is held: %s", header.fragment, receipt.reason)
        return True
