"""Pushes: when they are retried, when given up, what they leave behind."""

import asyncio
import logging
from dataclasses import replace
from functools import partial

import pytest
import torch

from diloco.core.merge.codecs import codec_named
from diloco.learner.exchange.orders import Membership
from diloco.learner.exchange.outbox import Outbox
from diloco.learner.exchange.pushes import PushEncoding, Pushes
from diloco.learner.exchange.requests import GradientRequest, OuterGradient
from diloco.learner.exchange.residuals import Residuals
from diloco.learner.exchange.transfers import TransferCounts
from diloco.learner.training.capture import Capture
from diloco.wire.errors import DeadlineError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import Declined, LearnerMessage, PushHeader, PushReceipt
from tests.support.hand_clock import clock_of
from tests.support.hand_loop import HandLoop
from tests.unit.learner.exchange.pushes import PushLink, context_of

NOW, LATER = Membership("1", 7), Membership("1", 8)
VALUES = torch.tensor([1.0, -2.0, 0.3])


class Bench:
    """Pushes on a scripted link, of the admission ``NOW``."""

    def __init__(self, *fates: WireError | None, feeds_back: bool = True) -> None:
        self.link = PushLink(*fates)
        self.loop = HandLoop()
        self.outbox = Outbox(3600.0)
        self.outbox.session_begins(NOW)
        self.posted: list[tuple[int, int]] = []
        self.feedback = Residuals()
        self.counts = TransferCounts()
        encoding = PushEncoding(codec_named("Int8"), self.feedback if feeds_back else None)
        context = context_of(self.link, self.counts)
        self.pushes = Pushes(context, self.outbox, encoding, lambda *what: self.posted.append(what))
        self.pushes.session_begins(NOW)

    def push(self, values: torch.Tensor = VALUES) -> None:
        """Offer it, and go on until nothing is left to do."""
        self.loop.call_soon(lambda: self.offer(5, values))
        self.loop.work()

    def offer(self, version: int, values: torch.Tensor = VALUES, fragment: int = 0) -> None:
        capture = Capture(fragment, 4, 3, 30, values, torch.zeros(len(values)), None)
        self.pushes.offer(OuterGradient(GradientRequest(NOW, fragment, version, 2), capture))

    @property
    def said(self) -> list[LearnerMessage]:
        return list(self.outbox._slots.values())


def test_a_push_says_what_it_is_and_leaves_its_residual_pending() -> None:
    bench = Bench()
    bench.push()
    ((header, payload),) = bench.link.pushed
    assert header == PushHeader("r/p/0", 7, 0, 5, 2, 4, 3, 30, "Int8", len(payload), "1")
    assert bench.feedback.residual(0) is None
    bench.feedback.outcome(0, 5, merged=True)
    assert bench.feedback.residual(0) is not None
    assert (bench.counts.pushes, bench.counts.bytes_pushed, bench.counts.pushes_refused) == (1, len(payload), 0)
    assert bench.pushes.pending() == ()


def test_without_error_feedback_no_residual_is_left() -> None:
    bench = Bench(feeds_back=False)
    bench.push()
    bench.feedback.outcome(0, 5, merged=True)
    assert (len(bench.link.pushed), bench.feedback.residual(0)) == (1, None)


def test_a_push_gives_way_to_a_newer_one_of_its_fragment() -> None:
    bench = Bench(UnavailableError("broken"))

    def overtaken() -> None:
        bench.link.after_call = lambda: None
        bench.offer(6)

    bench.link.after_call = overtaken
    bench.push()
    assert [header.version for header, _ in bench.link.pushed] == [6]


def test_a_push_of_an_admission_that_is_over_is_not_encoded() -> None:
    bench = Bench()
    bench.pushes.session_begins(LATER)
    bench.push(torch.tensor([1.0, float("nan"), 0.0]))
    assert (bench.link.calls, bench.said) == (0, [])


def test_a_retry_has_twice_the_time_only_after_a_missed_deadline() -> None:
    bench = Bench(UnavailableError("broken"), DeadlineError("late"))
    bench.push()
    ((_, payload),) = bench.link.pushed
    size = len(payload)
    assert bench.counts.retries == 2
    assert bench.link.deadlines == [20 + 8 * size / 2**20, 20 + 8 * size / 2**20, 20 + 8 * size / 2**19]


def test_the_time_of_the_next_push_follows_what_the_last_one_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, bench = clock_of("exchange.pushes", monkeypatch), Bench()
    bench.link.after_call = lambda: setattr(clock, "now", clock.now + 2.0)
    bench.push(torch.zeros(1 << 16))
    bench.push(torch.zeros(1 << 16))
    assert bench.link.deadlines == [20 + 8 * len(bench.link.pushed[0][1]) / 2**20, 20 + 8 * 2.0]


def test_a_push_is_given_up_with_its_admission() -> None:
    bench = Bench(UnavailableError("broken"))
    bench.link.after_call = bench.pushes.session_over
    bench.push()
    assert bench.link.calls == 1
    assert bench.link.pushed == []


def test_a_refused_push_is_not_retried_and_its_residual_waits_for_a_merge() -> None:
    # It may be the repetition of one that arrived and lost its receipt on the way.
    bench = Bench(RefusedError("it was received before"))
    bench.push()
    assert bench.link.calls == 1
    bench.feedback.outcome(0, 5, merged=True)
    assert bench.feedback.residual(0) is not None


def test_a_push_that_came_too_late_loses_its_residual(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "diloco.learner.exchange.pushes")
    bench = Bench()
    bench.link.receipt = PushReceipt(accepted=False, reason="late")
    bench.push()
    bench.feedback.outcome(0, 5, merged=False)
    assert bench.feedback.residual(0) is None
    assert bench.counts.pushes_refused == 1
    assert [record.getMessage() for record in caplog.records] == ["the syncer refused fragment 0 for version 5: late"]


def test_an_outer_gradient_that_cannot_be_encoded_is_declined_as_broken() -> None:
    bench = Bench()
    bench.push(torch.tensor([1.0, float("nan"), 0.0]))
    assert bench.link.calls == 0
    assert bench.said == [Declined(7, 0, 5, 2, broken=True)]
    assert bench.posted == []  # there will be no such version


def test_a_pull_is_posted_before_the_push_that_it_answers() -> None:
    bench, seen = Bench(), list[list[tuple[int, int]]]()
    bench.link.after_call = lambda: seen.append(list(bench.posted))
    bench.push()
    assert seen == [[(0, 5)]]


class Waiting(PushLink):
    """Pushes wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[int, int]] = []
        """Fragment and version."""
        self.go = asyncio.Event()

    async def push(self, header: PushHeader, payload: memoryview, *, deadline_seconds: float) -> PushReceipt:
        self.begun.append((header.fragment, header.version))
        await self.go.wait()
        return await super().push(header, payload, deadline_seconds=deadline_seconds)


class Turns(Bench):
    """Pushes that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = Waiting()
        self.pushes._context = replace(self.pushes._context, bulk=self.waiting)

    def offers(self, *places: tuple[int, int]) -> list[tuple[int, int]]:
        """Offer these; returns what has begun once nothing is left to do."""
        for fragment, version in places:
            self.loop.call_soon(partial(self.offer, version, fragment=fragment))
        self.loop.work()
        return self.waiting.begun


def test_one_of_a_fragment_goes_at_a_time_and_the_newest_is_next() -> None:
    turns = Turns()
    assert turns.offers((0, 5), (0, 6), (0, 7), (1, 5)) == [(0, 5), (1, 5)]
    assert turns.pushes.pending() == (0, 0, 1)
    turns.waiting.go.set()
    assert turns.offers() == [(0, 5), (1, 5), (0, 7)]
    assert turns.pushes.pending() == ()


def test_eight_are_sent_at_once_and_the_others_in_the_order_they_came() -> None:
    turns = Turns()
    turns.offers(*((fragment, 5) for fragment in range(9)), (0, 6), (8, 6))
    assert turns.waiting.begun == [(fragment, 5) for fragment in range(8)]
    assert turns.pushes.pending() == (8, 0, *range(8))
    turns.waiting.go.set()
    assert turns.offers()[8:] == [(8, 6), (0, 6)]
    assert turns.pushes.pending() == ()


@pytest.mark.parametrize("over", [False, True])
def test_who_waits_until_all_is_sent_is_told_when_it_is_or_never_will_be(*, over: bool) -> None:
    turns = Turns()
    turns.offers((0, 5), (0, 6))
    idle = turns.loop.create_task(turns.pushes.until_idle())
    turns.loop.work()
    assert not idle.done()
    turns.loop.call_soon(turns.pushes.session_over if over else turns.waiting.go.set)
    turns.loop.work()
    assert idle.done()
    assert len(turns.waiting.pushed) == (0 if over else 2)


def test_a_push_of_an_earlier_session_is_withdrawn_and_delays_none() -> None:
    turns = Turns()
    turns.offers((0, 5), (0, 6))
    turns.pushes.session_over()
    turns.pushes.session_begins(NOW)
    assert turns.offers((0, 7)) == [(0, 5), (0, 7)]
    turns.waiting.go.set()
    turns.loop.work()
    assert [header.version for header, _ in turns.waiting.pushed] == [7]
