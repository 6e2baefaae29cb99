"""Pulls on a scripted link, whose loop is run by the test."""

from collections.abc import Callable

import torch

from diloco.core.buffers import recycled
from diloco.core.merge.codec import Codec
from diloco.core.merge.codecs import codec_named
from diloco.core.merge.downlink import Update, encode_update
from diloco.learner.exchange.holdings import Holdings, MergedFragment
from diloco.learner.exchange.orders import Membership, Wakeup
from diloco.learner.exchange.pulls import Pulls, ReceiveOptions
from diloco.learner.exchange.transfers import TransferCounts
from diloco.wire.errors import UnavailableError, WireError
from diloco.wire.messages import PullHeader, PullRequest, PushReceipt
from diloco.wire.part_messages import payload_digest
from tests.support.hand_loop import HandLoop
from tests.unit.learner.exchange.pushes import context_of

NOW = Membership("1", 7)
CODEC = codec_named("Int8")
BASE = torch.tensor([1.0, -2.0, 0.3])
MERGED = torch.tensor([1.1, -2.3, 0.35])


MOST_PULLS = 10
"""Of a test: one that begins again without an end fails it."""


def digest(values: torch.Tensor) -> bytes:
    return payload_digest(values.numpy().data.cast("B"))


class Syncer:
    """The syncer: version 8 is BASE, version 9 its update towards MERGED. Every pull gets the next result."""

    def __init__(self, *fates: WireError | PullHeader | None, codec: Codec = CODEC) -> None:
        self.fates = list(fates)
        self.requests: list[PullRequest] = []
        self.deadlines: list[float] = []
        """Seconds that each pull was given."""
        self.after_call: Callable[[], None] = lambda: None
        self.while_it_comes: Callable[[], None] = lambda: None
        """Once the answer has begun."""
        self.new, rest = MERGED.clone(), torch.zeros(3)
        payload, _ = encode_update(codec, Update(BASE, self.new, rest, rest))
        assert payload is not None
        self.payload = payload
        self.update = PullHeader(0, 9, payload.numel(), b"", codec.name, 8, digest(self.new))

    async def push(self, *_: object, **__: object) -> PushReceipt:
        raise AssertionError("a push is not expected here")

    async def pull(
        self, request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
    ) -> PullHeader:
        assert len(self.requests) < MOST_PULLS
        self.deadlines.append(deadline_seconds)
        self.requests.append(request)
        self.after_call()
        fate = self.fates.pop(0) if self.fates else None
        if isinstance(fate, WireError):
            raise fate
        header = fate or (self.update if request.held_version == 8 else PullHeader(0, 9, self.new.nbytes))
        sent = self.payload if header.codec else self.new
        buffer = allocate(header)
        self.while_it_comes()
        buffer[:] = sent.numpy().data.cast("B")
        return header

    def breaks_off(self) -> None:
        """Fail this pull, and let the next ones succeed."""
        self.while_it_comes = lambda: None
        raise UnavailableError("broke off")


class Bench:
    """Pulls on a scripted link. The learner holds version 8."""

    def __init__(
        self,
        *fates: WireError | PullHeader | None,
        holds: int = 8,
        downlink: bool = True,
        codec: Codec = CODEC,
        whole: torch.Tensor | None = None,
    ) -> None:
        """``whole``: the values of version 9, where it is pulled whole."""
        self.syncer = syncer = Syncer(*fates, codec=codec)
        if whole is not None:
            syncer.new = whole
        self.loop = HandLoop()
        self.holdings = Holdings(Wakeup(), 1)
        self.holdings.admitted(NOW, [])
        self.holdings.received(MergedFragment("1", 0, holds, BASE.clone()))
        self.counts = TransferCounts()
        self.buffers = 0
        self.step_seconds = 0.0
        self.numel = syncer.new.numel()
        receive_options = ReceiveOptions((self.numel,), self._buffer, codec if downlink else None)
        context = context_of(syncer, self.counts, lambda: self.step_seconds)
        self.pulls = Pulls(context, self.holdings, receive_options)
        self.pulls.session_begins(NOW)

    def _buffer(self, _: int) -> torch.Tensor:
        self.buffers += 1
        return recycled(self.numel, torch.float32)

    def pull(
        self, minimum_version: int = 9, load: tuple[int, ...] = (), *, whole: bool = False
    ) -> list[MergedFragment]:
        """Order a pull under an admission with this to ``load``; returns what has arrived, which nobody swaps in."""
        self.holdings.admitted(NOW, load)
        return self.work_off(lambda: self.pulls.want(0, minimum_version, load=bool(load), whole=whole))

    def post(self, minimum_version: int = 9) -> list[MergedFragment]:
        """Post a pull; returns what has arrived through it, and through what it led to."""
        self.holdings.admitted(NOW, [])
        return self.work_off(lambda: self.pulls.post(0, minimum_version))

    def work_off(self, *calls: Callable[[], object]) -> list[MergedFragment]:
        """Do these on the loop; returns what has arrived once nothing is left to do."""
        for call in calls:
            self.loop.call_soon(call)
        self.loop.work()
        return self.holdings.take()
