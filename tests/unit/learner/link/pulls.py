"""A puller on a scripted link, whose threads are run by the test."""

import contextlib
import threading
from collections.abc import Callable

import torch

from diloco.core.buffers import recycled
from diloco.core.merge.codec import Codec
from diloco.core.merge.codecs import codec_named
from diloco.core.merge.downlink import Update, encode_update
from diloco.learner.link.puller import Puller, ReceiveOptions
from diloco.learner.link.transfers import TransferContext, TransferCounts
from diloco.learner.mailboxes.holdings import Holdings, Membership
from diloco.learner.mailboxes.pull_queue import MergedFragment, PullOrder, PullQueue
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.wire.client.transfer_handle import TransferHandle
from diloco.wire.errors import UnavailableError, WireError
from diloco.wire.messages import PullHeader, PullRequest, PushReceipt
from diloco.wire.part_messages import payload_digest
from tests.support.scripted_condition import NothingToDoError, script

NOW = Membership("1", 7)
CODEC = codec_named("Int8")
BASE = torch.tensor([1.0, -2.0, 0.3])
MERGED = torch.tensor([1.1, -2.3, 0.35])


MOST_PULLS = 10
"""Of a test: a puller that begins again without an end fails it."""


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

    def push(self, *_: object, **__: object) -> PushReceipt:
        raise AssertionError("a push is not expected here")

    def pull(
        self,
        request: PullRequest,
        allocate: Callable[[PullHeader], memoryview],
        *,
        deadline_seconds: float,
        handle: TransferHandle,
    ) -> PullHeader:
        assert not handle.withdrawn
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
    """A puller on a scripted link. ``now`` is the current admission; the learner holds version 8."""

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
        self.now: Membership | None = NOW
        self.pull_queue = PullQueue(Wakeup())
        script(self.pull_queue, "_work", "_posting")
        self.pull_queue.session_begins(NOW)
        self.holdings = Holdings(1)
        self.holdings.admitted(NOW, [])
        self.holdings.received("1", 0, holds, BASE.clone())
        self.counts = TransferCounts()
        self.buffers = 0
        self.step_seconds = 0.0
        self.numel = syncer.new.numel()
        self.stopped = threading.Event()
        context = TransferContext(
            "r/p/0", syncer, lambda: self.now, lambda: self.step_seconds, self.stopped, lambda: -1.0, self.counts
        )
        receive_options = ReceiveOptions((self.numel,), self._buffer, codec if downlink else None)
        self.puller = Puller(context, self.pull_queue, self.holdings, receive_options)

    def _buffer(self, _: int) -> torch.Tensor:
        self.buffers += 1
        return recycled(self.numel, torch.float32)

    def pull(self, minimum_version: int = 9) -> list[MergedFragment]:
        """Order a pull; returns what has arrived once no worker has anything left to do.

        Each is of another admission, as nothing is swapped in here.
        """
        self.pull_queue.session_begins(NOW)
        self.pull_queue.want(PullOrder(NOW, 0, minimum_version))
        return self.work_off()

    def post(self, minimum_version: int = 9) -> list[MergedFragment]:
        """Post a pull, of another admission too; returns what has arrived through it."""
        self.pull_queue.session_begins(NOW)
        self.pull_queue.post(PullOrder(NOW, 0, minimum_version))
        with contextlib.suppress(NothingToDoError):
            self.puller.run_posted()
        return self.pull_queue.take()

    def work_off(self) -> list[MergedFragment]:
        with contextlib.suppress(NothingToDoError):
            self.puller.run()
        return self.pull_queue.take()
