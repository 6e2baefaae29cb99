"""The workers that push: when they retry, when they give up, what they leave behind."""

import contextlib
import logging
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch

from diloco.core.merge.codecs import codec_named
from diloco.learner.link.pusher import PushEncoding, Pusher
from diloco.learner.link.transfers import TransferContext, TransferCounts
from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.pull_queue import PullOrder, PullQueue
from diloco.learner.mailboxes.push_queue import OuterGradient, PushQueue
from diloco.learner.mailboxes.requests import GradientRequest
from diloco.learner.mailboxes.residuals import Residuals
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.training.capture import Capture
from diloco.wire.errors import DeadlineError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import PushHeader, PushReceipt
from tests.support.hand_clock import clock_of
from tests.support.scripted_condition import NothingToDoError, script
from tests.unit.learner.link.pushes import PushLink

if TYPE_CHECKING:
    from diloco.learner.mailboxes.control_outbox import ControlOutbox

NOW = Membership("1", 7)
VALUES = torch.tensor([1.0, -2.0, 0.3])


class Bench:
    """A worker on a scripted link. ``now`` is the current admission."""

    def __init__(self, *fates: WireError | None, feeds_back: bool = True) -> None:
        self.link = PushLink(*fates)
        self.stopped = threading.Event()
        self.now: Membership | None = NOW
        self.push_queue = PushQueue()
        script(self.push_queue, "_work", "_idle")
        self.pull_queue = PullQueue(Wakeup())
        self.pull_queue.session_begins(NOW)
        self.said: list[tuple[object, ...]] = []
        control = SimpleNamespace(
            declined=lambda *what, broken: self.said.append(("broken" if broken else "declined", *what)),
            post=lambda: self.said.append(("post",)),
        )
        self.feedback = Residuals()
        self.counts = TransferCounts()
        context = TransferContext(
            "r/p/0", self.link, lambda: self.now, lambda: 0.0, self.stopped, lambda: -1.0, self.counts
        )
        encoding = PushEncoding(codec_named("Int8"), self.feedback if feeds_back else None)
        self.pusher = Pusher(context, self.push_queue, self.pull_queue, cast("ControlOutbox", control), encoding)

    def push(self, values: torch.Tensor = VALUES) -> None:
        """Offer it, and run the worker until it has nothing to do."""
        self.offer(5, values)
        with contextlib.suppress(NothingToDoError):
            self.pusher.run()

    def offer(self, version: int, values: torch.Tensor = VALUES) -> None:
        capture = Capture(0, 4, 3, 30, values, torch.zeros(len(values)), None)
        self.push_queue.offer(OuterGradient(GradientRequest(NOW, 0, version, 2), capture))


def test_a_push_says_what_it_is_and_leaves_its_residual_pending() -> None:
    bench = Bench()
    bench.push()
    ((header, payload),) = bench.link.pushed
    assert header == PushHeader("r/p/0", 7, 0, 5, 2, 4, 3, 30, "Int8", len(payload), "1")
    assert bench.feedback.residual(0) is None
    bench.feedback.outcome(0, 5, merged=True)
    assert bench.feedback.residual(0) is not None
    assert (bench.counts.pushes, bench.counts.bytes_pushed, bench.counts.pushes_refused) == (1, len(payload), 0)
    assert bench.push_queue.wait_until_idle(0.0)


def test_without_error_feedback_no_residual_is_left() -> None:
    bench = Bench(feeds_back=False)
    bench.push()
    bench.feedback.outcome(0, 5, merged=True)
    assert (len(bench.link.pushed), bench.feedback.residual(0)) == (1, None)


def test_a_learner_that_ends_tries_no_more() -> None:
    bench = Bench(UnavailableError("broken"))
    bench.stopped.set()
    bench.push()
    assert (bench.link.calls, bench.counts.retries) == (1, 1)


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
    bench.now = Membership("1", 8)
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
    clock, bench = clock_of("link.transfers", monkeypatch), Bench()
    bench.link.after_call = lambda: setattr(clock, "now", clock.now + 2.0)
    bench.push(torch.zeros(1 << 16))
    bench.push(torch.zeros(1 << 16))
    assert bench.link.deadlines == [20 + 8 * len(bench.link.pushed[0][1]) / 2**20, 20 + 8 * 2.0]


def test_a_push_is_given_up_with_its_admission() -> None:
    bench = Bench(UnavailableError("broken"))
    bench.link.after_call = lambda: setattr(bench, "now", Membership("1", 8))
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
    caplog.set_level(logging.DEBUG, "diloco.learner.link.pusher")
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
    assert bench.said == [("broken", NOW, 0, 5, 2), ("post",)]
    bench.pull_queue.close()
    assert bench.pull_queue.next_post() is None  # there will be no such version


def test_a_pull_is_posted_before_the_push_that_it_answers() -> None:
    bench = Bench()
    posted: list[PullOrder] = []
    bench.link.after_call = lambda: posted.append(posted_by(bench))
    bench.push()
    assert posted == [PullOrder(NOW, 0, 5)]


def posted_by(bench: Bench) -> PullOrder:
    post = bench.pull_queue.next_post()
    assert post is not None
    return post
