"""The workers that pull: what they ask for, what they refuse to receive, and what they make of an update."""

import logging
import math
import threading
from collections.abc import Callable

import pytest
import torch

from diloco.core.codec import codec_named
from diloco.core.downlink import Update, encode_update
from diloco.learner.mailboxes.holdings import Holdings, Membership
from diloco.learner.mailboxes.pull_queue import MergedFragment, PullOrder, PullQueue
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.puller import Landing, Puller
from diloco.learner.transfers import TransferContext, TransferCounts
from diloco.runtime.busy import BusyMeter, Moved
from diloco.wire.chunks import payload_digest
from diloco.wire.errors import ClosedError, CorruptedError, DeadlineError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import PullHeader, PullRequest, PushReceipt
from diloco.wire.posting import Posting
from support.hand_clock import HandClock

NOW = Membership("1", 7)
CODEC = codec_named("Int8")
BASE = torch.tensor([1.0, -2.0, 0.3])
MERGED = torch.tensor([1.1, -2.3, 0.35])


def digest(values: torch.Tensor) -> bytes:
    return payload_digest(values.numpy().data.cast("B"))


class Syncer:
    """The far side: version 8 is BASE, version 9 its Int8 update towards MERGED. Every pull meets the next fate."""

    def __init__(self, *fates: WireError | PullHeader | None) -> None:
        self.fates = list(fates)
        self.requests: list[PullRequest] = []
        self.after_call: Callable[[], None] = lambda: None
        self.new, rest = MERGED.clone(), torch.zeros(3)
        payload, _ = encode_update(CODEC, Update(BASE, self.new, rest, rest))
        assert payload is not None
        self.payload = payload
        self.update = PullHeader(0, 9, payload.numel(), b"", "Int8", 8, digest(self.new))

    def push(self, *_: object, **__: object) -> PushReceipt:
        raise AssertionError("nobody pushes here")

    def pull(
        self, request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
    ) -> PullHeader:
        assert deadline_seconds > 0
        self.requests.append(request)
        self.after_call()
        fate = self.fates.pop(0) if self.fates else None
        if isinstance(fate, WireError):
            raise fate
        header = fate or (self.update if request.held_version == 8 else PullHeader(0, 9, self.new.nbytes))
        sent = self.payload if header.codec else self.new
        allocate(header)[:] = sent.numpy().tobytes()
        return header

    def pull_posted(
        self,
        request: PullRequest,
        allocate: Callable[[PullHeader], memoryview],
        *,
        deadline_seconds: float,
        posting: Posting,
    ) -> PullHeader:
        assert request.posted
        posting.begin(None)
        return self.pull(request, allocate, deadline_seconds=deadline_seconds)


class Bench:
    """A puller on a scripted link. ``now`` is the admission that lasts; it holds version 8."""

    def __init__(self, syncer: Syncer, *, holds: int = 8, downlink: bool = True) -> None:
        self.now: Membership | None = NOW
        self.pull_queue = PullQueue(Wakeup())
        self.pull_queue.session_begins(NOW, posted_pulls=True)
        self.holdings = Holdings(1)
        self.holdings.admitted(NOW, [])
        self.holdings.received("1", 0, holds, BASE.clone())
        self.counts = TransferCounts()
        self.buffers = 0
        context = TransferContext(
            "r/p/0", syncer, lambda: self.now, lambda: 0.0, threading.Event(), lambda: -1.0, self.counts
        )
        landing = Landing((3,), self._buffer, CODEC if downlink else None)
        self.puller = Puller(context, self.pull_queue, self.holdings, landing)

    def _buffer(self, _: int) -> torch.Tensor:
        self.buffers += 1
        return torch.empty(3)

    def pull(self, minimum_version: int = 9) -> list[MergedFragment]:
        """Wish for it, and what has landed once no worker has anything to do."""
        self.pull_queue.want(PullOrder(NOW, 0, minimum_version))
        return self.work_off()

    def post(self, minimum_version: int = 9) -> list[MergedFragment]:
        """Post a pull, and what has landed by it."""
        self.pull_queue.post(PullOrder(NOW, 0, minimum_version))
        post = self.pull_queue.next_post()
        assert post is not None
        self.puller._pull_posted(post)
        self.pull_queue.post_ended(post)
        return self.pull_queue.take()

    def work_off(self) -> list[MergedFragment]:
        order = self.pull_queue.next_wish()
        assert order is not None
        self.puller._pull(order)
        self.pull_queue.done(order)
        return self.pull_queue.take()


def test_an_update_is_added_to_the_version_held_and_is_what_the_syncer_has() -> None:
    syncer = Syncer()
    bench = Bench(syncer)
    (arrival,) = bench.pull()
    assert [request.held_version for request in syncer.requests] == [8]
    assert arrival.version == 9
    assert torch.equal(arrival.values, syncer.new)
    assert (bench.counts.pulls, bench.counts.updates, bench.counts.bytes_pulled) == (1, 1, syncer.payload.numel())
    held = bench.holdings.held("1", 0)
    assert held is not None
    assert torch.equal(held.values, BASE)


def test_a_learner_that_holds_another_version_takes_the_fragment_whole() -> None:
    syncer = Syncer()
    bench = Bench(syncer, holds=7)
    (arrival,) = bench.pull()
    assert torch.equal(arrival.values, syncer.new)
    assert (bench.counts.updates, bench.counts.bytes_pulled) == (0, 12)


def test_a_job_without_updates_says_nothing_of_what_it_holds() -> None:
    syncer = Syncer()
    bench = Bench(syncer, downlink=False)
    (arrival,) = bench.pull()
    assert [request.held_version for request in syncer.requests] == [None]
    assert torch.equal(arrival.values, syncer.new)


def test_what_is_held_of_another_epoch_is_no_base() -> None:
    syncer = Syncer()
    bench = Bench(syncer)
    bench.now = restarted = Membership("2", 1)
    bench.holdings.admitted(restarted, [0])
    bench.pull_queue.session_begins(restarted, posted_pulls=True)
    bench.pull_queue.want(PullOrder(restarted, 0, 9))
    (arrival,) = bench.work_off()
    assert [request.held_version for request in syncer.requests] == [None]
    assert arrival.membership == restarted


def test_a_fragment_that_is_to_be_loaded_is_loaded_whole() -> None:
    syncer = Syncer()
    bench = Bench(syncer)
    bench.holdings.admitted(NOW, [0])
    bench.pull()
    assert [request.held_version for request in syncer.requests] == [None]


def test_an_update_that_comes_out_wrong_is_dropped_and_the_fragment_pulled_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    syncer = Syncer()
    syncer.payload[-1] ^= 1
    bench = Bench(syncer)
    (arrival,) = bench.pull()
    assert [request.held_version for request in syncer.requests] == [8, None]
    assert torch.equal(arrival.values, syncer.new)
    assert (bench.counts.updates_wrong, bench.counts.pulls) == (1, 2)
    assert "fragment 0 from version 8 to 9 does not make what the syncer has" in caplog.text


def test_a_posted_update_that_comes_out_wrong_is_wished_for_whole() -> None:
    syncer = Syncer()
    syncer.payload[-1] ^= 1
    bench = Bench(syncer)
    assert bench.post() == []
    (arrival,) = bench.work_off()
    assert [(request.posted, request.held_version) for request in syncer.requests] == [(True, 8), (False, None)]
    assert torch.equal(arrival.values, syncer.new)


def test_after_three_wrong_updates_in_a_row_only_whole_fragments_are_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    syncer = Syncer()
    syncer.payload[-1] ^= 1
    bench = Bench(syncer)
    for _ in range(4):
        bench.pull()
    assert [request.held_version for request in syncer.requests] == [8, None, 8, None, 8, None, None]
    assert "3 updates in a row came out wrong" in caplog.text


@pytest.mark.parametrize(
    "offered",
    [
        PullHeader(0, 9, 1 << 40),
        PullHeader(1, 9, 12),
        PullHeader(0, 8, 12),
        PullHeader(0, 9, 12, b"", "Int8", 8),
        PullHeader(0, 9, CODEC.payload_bytes(3), b"", "Int8", 7),
        PullHeader(0, 9, 6, b"", "BF16", 8),
        PullHeader(0, 9, CODEC.payload_bytes(3)),
    ],
    ids=["too large", "another fragment", "too old", "size", "another base", "another codec", "no codec"],
)
def test_what_is_not_what_was_asked_for_takes_no_memory(offered: PullHeader) -> None:
    syncer = Syncer(offered)
    bench = Bench(syncer)
    syncer.after_call = lambda: setattr(bench, "now", None if len(syncer.requests) > 1 else NOW)
    syncer.fates.append(UnavailableError("broken"))
    assert bench.pull() == []
    assert bench.buffers == 0


def test_an_update_that_nobody_asked_for_is_refused() -> None:
    syncer = Syncer()
    bench = Bench(syncer, downlink=False)
    syncer.fates = [syncer.update, UnavailableError("broken")]
    syncer.after_call = lambda: setattr(bench, "now", None if len(syncer.requests) > 1 else NOW)
    assert bench.pull() == []


def test_a_pull_is_tried_again_while_its_admission_lasts() -> None:
    syncer = Syncer(UnavailableError("broken"), CorruptedError("a checksum"))
    bench = Bench(syncer)
    (arrival,) = bench.pull()
    assert (arrival.version, bench.counts.retries) == (9, 2)


def test_a_version_that_is_held_already_is_not_pulled() -> None:
    syncer = Syncer()
    bench = Bench(syncer)
    assert bench.pull(8) == []
    assert bench.post(8) == []
    assert syncer.requests == []


def test_a_posted_pull_says_what_is_held_and_lands_like_any() -> None:
    syncer = Syncer()
    bench = Bench(syncer)
    (arrival,) = bench.post()
    assert [(request.posted, request.held_version) for request in syncer.requests] == [(True, 8)]
    assert torch.equal(arrival.values, syncer.new)
    assert (bench.counts.posted, bench.counts.pulls) == (1, 1)


@pytest.mark.parametrize(
    "fate", [RefusedError("not made in time"), UnavailableError("broken"), ClosedError("withdrawn"), DeadlineError("")]
)
def test_a_post_that_nothing_came_of_takes_no_memory_and_leaves_it_to_the_notice(fate: WireError) -> None:
    syncer = Syncer(fate)
    bench = Bench(syncer)
    assert bench.post() == []
    assert (bench.buffers, bench.counts.retries) == (0, 0)
    (arrival,) = bench.pull()
    assert arrival.version == 9


def test_a_post_that_broke_off_while_it_was_answered_is_pulled_at_once() -> None:
    syncer = Syncer()
    bench = Bench(syncer)
    whole = syncer.pull

    def breaks_off(
        request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
    ) -> PullHeader:
        syncer.pull = whole  # type: ignore[method-assign]  # only the first
        whole(request, allocate, deadline_seconds=deadline_seconds)
        raise UnavailableError("broken")

    syncer.pull = breaks_off  # type: ignore[method-assign]  # in the middle, as a link does
    assert bench.post() == []
    (arrival,) = bench.work_off()
    assert torch.equal(arrival.values, syncer.new)


def test_the_time_of_a_pull_counts_from_when_its_answer_begins() -> None:
    clock, syncer = HandClock(), Syncer(UnavailableError("broken"), None)
    bench = Bench(syncer)
    bench.counts.received = BusyMeter(clock)
    syncer.after_call = lambda: setattr(clock, "now", clock.now + 60.0)  # before the answer begins
    assert bench.pull()
    assert bench.counts.received.read() == Moved(0.0, syncer.payload.numel())


def test_a_pull_that_breaks_off_takes_its_time_and_brings_nothing() -> None:
    clock = HandClock()

    class Breaking(Syncer):
        def pull(
            self, request: PullRequest, allocate: Callable[[PullHeader], memoryview], *, deadline_seconds: float
        ) -> PullHeader:
            if not self.requests:
                self.requests.append(request)
                allocate(self.update)
                clock.now += 5.0
                raise UnavailableError("broke off")
            return super().pull(request, allocate, deadline_seconds=deadline_seconds)

    bench = Bench(Breaking())
    bench.counts.received = BusyMeter(clock)
    assert bench.pull()
    assert bench.counts.received.read().busy_seconds == 5.0


@pytest.mark.parametrize("bad", [math.nan, 1e20])
def test_what_cannot_be_trained_on_is_not_swapped_in_and_told_once(
    caplog: pytest.LogCaptureFixture, bad: float
) -> None:
    syncer = Syncer()
    bench = Bench(syncer, downlink=False)
    syncer.new = torch.tensor([1.0, bad, 2.0])
    assert bench.pull() == []
    assert bench.pull() == []
    assert (len(syncer.requests), bench.counts.refused) == (2, 2)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert told.startswith("version 9 of fragment 0 is not swapped in: its values go from ")
    syncer.new = MERGED.clone()
    (landed,) = bench.pull()
    assert torch.equal(landed.values, MERGED)
