"""Pulls of merged fragments: checked, and updates added to the versions that are held.

A fragment is pulled in one of two ways. An *order* is for a version that the syncer has announced; it is retried for as
long as its admission lasts. A *post* is for a version that is still to be made, from a merge to which this learner has
just pushed: the pull waits at the syncer, which saves a round trip. It is tried once: the notice of its version becomes
an order, which only waits while a post of that version is out.

An update is added to exactly the version that it begins with, and the result must have the digest that the syncer
gives; otherwise it is dropped and the whole fragment is pulled. A fragment that cannot be trained on is dropped for
good: the training thread keeps what it has until a later version can be used.
"""

import asyncio
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
from diloco.learner.exchange.holdings import Held, Holdings, MergedFragment
from diloco.learner.exchange.orders import Membership
from diloco.learner.exchange.transfers import TransferContext, TransferDeadlines, UnderWay
from diloco.runtime.process.busy import BusyMeter
from diloco.wire.errors import DeadlineError, InvalidMessageError, WireError
from diloco.wire.messages import PullHeader, PullRequest
from diloco.wire.part_messages import payload_digest

_log = logging.getLogger(__name__)

_MOST: Final = 4
"""Most orders that are pulled at once (ours)."""
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


@dataclass(frozen=True, slots=True, eq=False)
class PullOrder:
    """A fragment to pull."""

    membership: Membership
    fragment: int
    minimum_version: int
    whole: bool = False
    """Pull the whole fragment, because an update has just given the wrong result."""
    load: bool = False
    """The learner cannot train before it has this fragment."""

    def covers(self, other: "PullOrder") -> bool:
        """Whether fulfilling this order fulfills the other one too."""
        return self.minimum_version >= other.minimum_version and self.whole >= other.whole


class Pulls:
    """For each fragment at most one order and one post that wait, and one of each under way, all of one session."""

    def __init__(self, context: TransferContext, holdings: Holdings, receive_options: ReceiveOptions) -> None:
        """``holdings`` has the versions that updates are added to, and gets what arrives."""
        self._context = context
        self._holdings = holdings
        self._receive_options = receive_options
        self._deadlines = TransferDeadlines()
        self._membership: Membership | None = None
        self._orders: dict[int, PullOrder] = {}
        self._posts: dict[int, PullOrder] = {}
        self._under_way = UnderWay[tuple[int, bool], PullOrder](context.tasks, self._begin)
        """By fragment, and whether it is posted."""
        self._wrong_in_a_row = 0
        self._refused_fragments: set[int] = set()
        """Fragments whose refusal was logged, so that each is logged once."""

    def session_begins(self, membership: Membership) -> None:
        """Begin an admission."""
        self._membership = membership

    def session_over(self) -> None:
        """Drop everything: the next admission says what is to be pulled."""
        self._membership = None
        self._orders.clear()
        self._posts.clear()
        self._under_way.cancel()

    def want(self, fragment: int, version: int, *, load: bool = False, whole: bool = False) -> None:
        """Have a version pulled that exists, unless it is here."""
        if self._membership is None:
            return
        order = PullOrder(self._membership, fragment, version, whole, load)
        before = (self._orders.get(fragment), self._out(fragment, posted=False))
        if not self._is_wanted(order) or any(one and one.covers(order) for one in before):
            return
        self._orders.pop(fragment, None)
        self._orders[fragment] = order
        late = self._posts.get(fragment)
        if late is not None and late.minimum_version <= version:
            del self._posts[fragment]  # the version it would wait for already exists
        self._begin()

    def post(self, fragment: int, version: int) -> None:
        """Have a version pulled that will be made, unless it is posted already."""
        if self._membership is None:
            return
        post, out = PullOrder(self._membership, fragment, version), self._out(fragment, posted=True)
        if not any(one and one.covers(post) for one in (self._posts.get(fragment), out)):
            self._posts[fragment] = post
            self._begin()

    def _out(self, fragment: int, *, posted: bool) -> PullOrder | None:
        return self._under_way.get((fragment, posted))

    def _begin(self) -> None:
        """Begin what can begin now."""
        for fragment, post in list(self._posts.items()):
            if self._out(fragment, posted=True) is None:
                del self._posts[fragment]
                self._under_way.start((fragment, True), post, self._pull_posted)
        for fragment, order in self._in_turn():
            if sum(not posted for _, posted in self._under_way.places) >= _MOST:
                return
            out = self._out(fragment, posted=True)
            comes_by_post = out is not None and order.covers(out) and not order.whole
            if not comes_by_post and self._out(fragment, posted=False) is None:
                del self._orders[fragment]
                self._under_way.start((fragment, False), order, self._pull)

    def _in_turn(self) -> list[tuple[int, PullOrder]]:
        # First what is to be loaded, in the order in which it was ordered: on a thin link, others merge fragments while
        # this learner loads, and if their news went first some fragments might never get their turn.
        loads = [(fragment, order) for fragment, order in self._orders.items() if order.load]
        # Then the newest: on a link that is too thin, the orders left over are the oldest, of which a newer version is
        # about to be made.
        return loads + [(fragment, order) for fragment, order in reversed(self._orders.items()) if not order.load]

    async def _pull(self, order: PullOrder) -> None:
        retries = self._context.retries()
        whole = order.whole
        while self._is_wanted(order):
            reception = self._reception(order, whole=whole)
            if await self._received(reception, posted=False):
                return
            whole = whole or reception.wrong
            self._context.counts.retries += 1
            if not reception.wrong:
                await asyncio.sleep(retries.next_seconds())

    async def _pull_posted(self, order: PullOrder) -> None:
        if not self._is_wanted(order):
            return
        reception = self._reception(order, whole=False)
        if not await self._received(reception, posted=True) and reception.began_at is not None:
            # The version exists: there is no need to wait for the notice.
            self.want(order.fragment, order.minimum_version, whole=reception.wrong)

    def _is_wanted(self, order: PullOrder) -> bool:
        return self._holdings.lacks(order.membership.epoch, order.fragment, order.minimum_version)

    def _reception(self, order: PullOrder, *, whole: bool) -> "_Reception":
        takes_updates = self._receive_options.codec is not None and not whole and self._wrong_in_a_row < _WRONG_LIMIT
        held = self._holdings.held(order.membership.epoch, order.fragment) if takes_updates else None
        return _Reception(order, self._receive_options, held, self._context.counts.received)

    async def _received(self, reception: "_Reception", *, posted: bool) -> bool:
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
            header = await self._transfer(request, reception, deadline)
        except WireError as error:
            _log.debug("pull of fragment %d failed: %s", order.fragment, error)
            # A post without an answer says nothing about the link.
            if isinstance(error, DeadlineError) and (not posted or reception.began_at is not None):
                self._deadlines.missed(began, time.monotonic())
            return False
        # The request's travel time counts, the wait for the version does not.
        since = began if not posted or reception.began_at is None else reception.began_at
        self._deadlines.took(header.payload_bytes, time.monotonic() - since)
        context.counts.pulls += 1
        context.counts.posted += posted
        context.counts.updates += bool(header.codec)
        context.counts.bytes_pulled += header.payload_bytes
        values, problem = await context.compute(reception.values, header)
        if values is None:
            self._note_wrong_update(order, header)
            return False
        if header.codec:
            self._wrong_in_a_row = 0
        if problem is not None:
            self._refused(order, header, problem)
            return True  # a second pull would bring the same values
        self._holdings.arrived(MergedFragment(order.membership.epoch, order.fragment, header.version, values))
        return True

    async def _transfer(self, request: PullRequest, reception: "_Reception", deadline_seconds: float) -> PullHeader:
        """Transfer it; raise WireError if it did not arrive whole."""
        received_bytes = 0
        try:
            header = await self._context.bulk.pull(request, reception.place, deadline_seconds=deadline_seconds)
            received_bytes = header.payload_bytes
            return header
        finally:
            if reception.began_at is not None:
                self._context.counts.received.end(received_bytes)

    def _refused(self, order: PullOrder, header: PullHeader, problem: str) -> None:
        self._context.counts.refused += 1
        level = logging.DEBUG if order.fragment in self._refused_fragments else logging.ERROR
        self._refused_fragments.add(order.fragment)
        told = "version %d of fragment %d is not swapped in: %s; training continues with the version it has"
        _log.log(level, told, header.version, order.fragment, problem)

    def _note_wrong_update(self, order: PullOrder, header: PullHeader) -> None:
        self._context.counts.updates_wrong += 1
        self._wrong_in_a_row += 1
        _log.warning(
            "the update of fragment %d from version %d to %d does not give the syncer's values; pulling it whole",
            order.fragment,
            header.base_version,
            header.version,
        )
        if self._wrong_in_a_row == _WRONG_LIMIT:
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

    def values(self, header: PullHeader) -> tuple[Tensor | None, str | None]:
        """The fragment, f32, flat, and why it cannot be trained on; None, None if it differs from the syncer's."""
        assert self._received is not None
        made = self._received
        if header.codec:
            assert self._codec is not None
            assert self.held is not None
            made = self._buffer(self.order.fragment)
            try:
                apply_update(self._codec, self._received, self.held.values, made)
                self.wrong = payload_digest(bytes_of(made)) != header.result_digest
            except CodecError:
                self.wrong = True
        return (None, None) if self.wrong else (made, problem_with(made))

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
