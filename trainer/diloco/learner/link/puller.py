"""The workers that pull merged fragments, check them, and add updates to the versions that are held.

An update is added to exactly the version that it begins with, outside the inner loop's thread, and the result must have
the digest that the syncer gives; otherwise it is dropped and the whole fragment is pulled. A fragment that cannot be
trained on is dropped for good: the loop keeps what it has until a later version can be used. Orders are retried for as
long as their admission lasts. Posts wait at the syncer in threads of their own, so that they do not delay other pulls;
they are tried once.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from diloco.core.buffers import bytes_of, recycled
from diloco.core.finite_check import problem_with
from diloco.core.merge.codec import Codec, CodecError
from diloco.core.merge.downlink import apply_update
from diloco.learner.link.transfer_deadlines import TransferDeadlines
from diloco.learner.link.transfers import TransferContext
from diloco.learner.mailboxes.holdings import Held, Holdings
from diloco.learner.mailboxes.pull_queue import MergedFragment, PullOrder, PullQueue
from diloco.runtime.process.busy import BusyMeter
from diloco.wire.errors import DeadlineError, InvalidMessageError, WireError
from diloco.wire.messages import PullHeader, PullRequest
from diloco.wire.part_messages import payload_digest

_log = logging.getLogger(__name__)

_WRONG_LIMIT: Final = 3
"""Wrong updates in a row before no more are requested (ours): this machine's arithmetic then differs."""


@dataclass(frozen=True)
class ReceiveOptions:
    """How fragments are received."""

    numels: Sequence[int]
    buffer: Callable[[int], Tensor]
    """Creates an f32 host buffer of a fragment's size."""
    codec: Codec | None
    """Codec of updates; None: only whole fragments are accepted."""


class Puller:
    """Pulls merged fragments. ``run`` and ``run_posted`` are each the body of one or more threads."""

    def __init__(
        self, context: TransferContext, pull_queue: PullQueue, holdings: Holdings, receive_options: ReceiveOptions
    ) -> None:
        """``holdings`` has the versions that updates are added to."""
        self._context = context
        self._pull_queue = pull_queue
        self._holdings = holdings
        self._receive_options = receive_options
        self._deadlines = TransferDeadlines()
        self._wrong_in_a_row = 0
        self._refused_fragments: set[int] = set()
        """Fragments whose refusal was logged, so that each is logged once."""

    def run(self) -> None:
        """Pull what is ordered until closed."""
        while (order := self._pull_queue.next_order()) is not None:
            try:
                self._pull(order)
            finally:
                self._pull_queue.done(order)

    def run_posted(self) -> None:
        """Post pulls and wait for their versions until closed."""
        while (post := self._pull_queue.next_post()) is not None:
            try:
                self._pull_posted(post)
            finally:
                self._pull_queue.post_ended(post)

    def _pull(self, order: PullOrder) -> None:
        retries = self._context.retries()
        whole = order.whole
        while self._is_wanted(order):
            reception = self._reception(order, whole=whole)
            if self._received(reception, posted=False):
                return
            whole = whole or reception.wrong
            with self._context.counts.lock:
                self._context.counts.retries += 1
            if not reception.wrong and self._context.stopped.wait(retries.next_seconds()):
                return

    def _pull_posted(self, order: PullOrder) -> None:
        if not self._is_wanted(order):
            return
        reception = self._reception(order, whole=False)
        if not self._received(reception, posted=True) and reception.began_at is not None:
            # The version exists: there is no need to wait for the notice.
            self._pull_queue.want(
                PullOrder(order.membership, order.fragment, order.minimum_version, whole=reception.wrong)
            )

    def _is_wanted(self, order: PullOrder) -> bool:
        waiting = self._pull_queue.waiting_version(order.membership, order.fragment)
        return (
            self._context.current() == order.membership
            and (waiting is None or waiting < order.minimum_version)
            and self._holdings.is_news(order.membership.epoch, order.fragment, order.minimum_version)
        )

    def _reception(self, order: PullOrder, *, whole: bool) -> "_Reception":
        takes_updates = self._receive_options.codec is not None and not whole and self._wrong_in_a_row < _WRONG_LIMIT
        held = self._holdings.held(order.membership.epoch, order.fragment) if takes_updates else None
        return _Reception(order, self._receive_options, held, self._context.counts.received)

    def _received(self, reception: "_Reception", *, posted: bool) -> bool:
        """Pull once. Returns whether nothing more need be done: it has arrived, or it is of no use."""
        order, context = reception.order, self._context
        request = PullRequest(
            learner=context.learner,
            incarnation=order.membership.incarnation,
            epoch=order.membership.epoch,
            fragment=order.fragment,
            minimum_version=order.minimum_version,
            held_version=None if reception.held is None else reception.held.version,
            posted=posted,
        )
        # Whoever loads makes no steps meanwhile.
        step_seconds = 0.0 if order.load else context.step_seconds()
        deadline = self._deadlines.seconds(reception.whole_bytes, step_seconds)
        began = time.monotonic()
        try:
            header = self._transfer(request, reception, deadline)
        except WireError as error:
            _log.debug("pull of fragment %d failed: %s", order.fragment, error)
            # A post without an answer says nothing about the link.
            if isinstance(error, DeadlineError) and (not posted or reception.began_at is not None):
                self._deadlines.missed(began, time.monotonic())
            return False
        # The request's travel time counts, the wait for the version does not.
        since = began if not posted or reception.began_at is None else reception.began_at
        self._deadlines.took(header.payload_bytes, time.monotonic() - since)
        with context.counts.lock:
            context.counts.pulls += 1
            context.counts.posted += posted
            context.counts.updates += bool(header.codec)
            context.counts.bytes_pulled += header.payload_bytes
        values = reception.values(header)
        if values is None:
            self._note_wrong_update(order, header)
            return False
        if header.codec:
            self._wrong_in_a_row = 0
        problem = problem_with(values)
        if problem is not None:
            self._refused(order, header, problem)
            return True  # a second pull would bring the same values
        self._pull_queue.arrived(MergedFragment(order.membership, order.fragment, header.version, values))
        return True

    def _transfer(self, request: PullRequest, reception: "_Reception", deadline_seconds: float) -> PullHeader:
        """Transfer it; raise WireError if it did not arrive whole."""
        received, bulk = self._context.counts.received, self._context.bulk
        received_bytes = 0
        try:
            header = bulk.pull(
                request, reception.place, deadline_seconds=deadline_seconds, handle=reception.order.handle
            )
            received_bytes = header.payload_bytes
            return header
        finally:
            if reception.began_at is not None:
                received.end(received_bytes)

    def _refused(self, order: PullOrder, header: PullHeader, problem: str) -> None:
        with self._context.counts.lock:
            self._context.counts.refused += 1
            first = order.fragment not in self._refused_fragments
            self._refused_fragments.add(order.fragment)
        level = logging.ERROR if first else logging.DEBUG
        told = "version %d of fragment %d is not swapped in: %s; training continues with the version it has"
        _log.log(level, told, header.version, order.fragment, problem)

    def _note_wrong_update(self, order: PullOrder, header: PullHeader) -> None:
        with self._context.counts.lock:
            self._context.counts.updates_wrong += 1
            self._wrong_in_a_row += 1
            given_up = self._wrong_in_a_row == _WRONG_LIMIT
        _log.warning(
            "the update of fragment %d from version %d to %d does not give the syncer's values; pulling it whole",
            order.fragment,
            header.base_version,
            header.version,
        )
        if given_up:
            _log.error("%d wrong updates in a row; pulling whole fragments from now on", _WRONG_LIMIT)


class _Reception:
    """One pull: the buffer it is received into, and its result."""

    def __init__(
        self, order: PullOrder, receive_options: ReceiveOptions, held: Held | None, received: BusyMeter
    ) -> None:
        """``held``: the version that an update may begin with; None: only a whole fragment is accepted."""
        self._meter = received
        self.order = order
        self.held = held
        self.wrong = False
        """An update arrived but did not give the expected result."""
        self.began_at: float | None = None
        """When the answer began, on the monotonic clock."""
        self._numel = receive_options.numels[order.fragment]
        self._buffer = receive_options.buffer
        self._codec = receive_options.codec
        self._received: Tensor | None = None

    @property
    def whole_bytes(self) -> int:
        """Size of the fragment in f32."""
        return 4 * self._numel

    def place(self, header: PullHeader) -> memoryview:
        """Where to receive it, after checking the offer against layout and codec.

        Raises:
            InvalidMessageError: it cannot be what was asked for; no memory was allocated.
        """
        if self.began_at is None:
            self._meter.begin()
        self.began_at = time.monotonic()
        order = self.order
        if header.fragment != order.fragment or header.version < order.minimum_version or not self._fits(header):
            raise InvalidMessageError(
                f"the syncer offers {_description(header)}; asked for fragment {order.fragment} from version "
                f"{order.minimum_version} on, {self.whole_bytes} bytes{self._or_update()}"
            )
        if header.codec:
            self._received = recycled(header.payload_bytes, torch.uint8)
        else:
            self._received = self._buffer(order.fragment)
        return bytes_of(self._received)

    def values(self, header: PullHeader) -> Tensor | None:
        """The received fragment, f32, flat; None if it differs from the syncer's."""
        assert self._received is not None
        if not header.codec:
            return self._received
        assert self._codec is not None
        assert self.held is not None
        made = self._buffer(self.order.fragment)
        try:
            apply_update(self._codec, self._received, self.held.values, made)
            self.wrong = payload_digest(bytes_of(made)) != header.result_digest
        except CodecError:
            self.wrong = True
        return None if self.wrong else made

    def _fits(self, header: PullHeader) -> bool:
        if not header.codec:
            return header.payload_bytes == self.whole_bytes
        return (
            self.held is not None
            and self._codec is not None
            and (header.codec, header.base_version) == (self._codec.name, self.held.version)
            and header.payload_bytes == self._codec.payload_bytes(self._numel)
        )

    def _or_update(self) -> str:
        if self.held is None or self._codec is None:
            return ""
        size = self._codec.payload_bytes(self._numel)
        return f", or its {self._codec.name} update from version {self.held.version}, {size} bytes"


def _description(header: PullHeader) -> str:
    kind = f"its {header.codec} update from version {header.base_version}, " if header.codec else ""
    return f"fragment {header.fragment} at version {header.version}, {kind}{header.payload_bytes} bytes"
