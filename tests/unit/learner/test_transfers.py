"""The workers that push: when they try again, when they give up, what they leave behind."""

import threading
from collections.abc import Callable

import torch

from diloco.core.codec import codec_named
from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.outbox import ControlOutbox
from diloco.learner.mailboxes.pull_queue import PullOrder, PullQueue
from diloco.learner.mailboxes.push_queue import OuterGradient, PushQueue
from diloco.learner.mailboxes.requests import GradientRequest
from diloco.learner.mailboxes.residuals import Residuals
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.training.capture import Capture
from diloco.learner.transfers import Narrowing, Pusher, TransferContext, TransferCounts
from diloco.wire.errors import RefusedError, UnavailableError, WireError
from diloco.wire.messages import PullHeader, PushHeader, PushReceipt

NOW = Membership("1", 7)
VALUES = torch.tensor([1.0, -2.0, 0.3])


class Link:
    """The bulk side, scripted: each push takes the next of ``fates``; None is success."""

    def __init__(self, *fates: WireError | None) -> None:
        self.fates = list(fates)
        self.pushed: list[tuple[PushHeader, bytes]] = []
        self.calls = 0
        self.receipt = PushReceipt(accepted=True)
        self.after_call: Callable[[], None] = lambda: None

    def push(self, header: PushHeader, payload: memoryview, *, deadline_seconds: float) -> PushReceipt:
        assert deadline_seconds > 0
        self._meet_fate()
        self.pushed.append((header, bytes(payload)))
        return self.receipt

    def pull(self, *_: object, **__: object) -> PullHeader:
        raise AssertionError("nobody pulls here")

    pull_posted = pull

    def _meet_fate(self) -> None:
        self.calls += 1
        self.after_call()
        fate = self.fates.pop(0) if self.fates else None
        if fate is not None:
            raise fate


class Bench:
    """A worker on a scripted link. ``now`` is the admission that lasts."""

    def __init__(self, link: Link, codec: str = "Int8") -> None:
        self.now: Membership | None = NOW
        self.push_queue = PushQueue()
        self.pull_queue = PullQueue(Wakeup())
        self.pull_queue.session_begins(NOW, posted_pulls=True)
        self.control = ControlOutbox(3600.0)
        self.feedback = Residuals()
        self.counts = TransferCounts()
        context = TransferContext(
            "r/p/0", link, lambda: self.now, lambda: 0.0, threading.Event(), lambda: -1.0, self.counts
        )
        narrowing = Narrowing(codec_named(codec), self.feedback)
        self.pusher = Pusher(context, self.push_queue, self.pull_queue, self.control, narrowing)

    def push(self, values: torch.Tensor = VALUES) -> None:
        capture = Capture(0, 4, 3, 30, values, torch.zeros(len(values)), None)
        self.push_queue.offer(OuterGradient(GradientRequest(NOW, 0, 5, 2), capture))
        self._until_idle(self.pusher.run, lambda: self.push_queue.wait_until_idle(60.0), self.push_queue.close)

    @staticmethod
    def _until_idle(body: Callable[[], None], idle: Callable[[], bool], close: Callable[[], None]) -> None:
        worker = threading.Thread(target=body)
        worker.start()
        assert idle()
        close()
        worker.join()


def test_a_push_says_what_it_is_and_leaves_its_residual_pending() -> None:
    link = Link()
    bench = Bench(link)
    bench.push()
    ((header, payload),) = link.pushed
    assert header == PushHeader("r/p/0", 7, 0, 5, 2, 4, 3, 30, "Int8", len(payload), "1")
    assert bench.feedback.residual(0) is None
    bench.feedback.outcome(0, 5, merged=True)
    assert bench.feedback.residual(0) is not None
    assert (bench.counts.pushes, bench.counts.bytes_pushed) == (1, len(payload))


def test_a_push_is_tried_again_while_its_admission_lasts() -> None:
    link = Link(UnavailableError("broken"), UnavailableError("broken"))
    bench = Bench(link)
    bench.push()
    assert (link.calls, len(link.pushed), bench.counts.retries) == (3, 1, 2)


def test_a_push_is_given_up_with_its_admission() -> None:
    link = Link(UnavailableError("broken"))
    bench = Bench(link)
    link.after_call = lambda: setattr(bench, "now", Membership("1", 8))
    bench.push()
    assert link.calls == 1
    assert link.pushed == []


def test_a_push_that_is_refused_is_not_tried_again_and_its_residual_waits_for_the_merge() -> None:
    # It may be the repetition of one that arrived and lost its receipt on the way.
    link = Link(RefusedError("it is here already"))
    bench = Bench(link)
    bench.push()
    assert link.calls == 1
    bench.feedback.outcome(0, 5, merged=True)
    assert bench.feedback.residual(0) is not None


def test_a_push_that_came_too_late_loses_its_residual() -> None:
    link = Link()
    link.receipt = PushReceipt(accepted=False, reason="late")
    bench = Bench(link)
    bench.push()
    bench.feedback.outcome(0, 5, merged=False)
    assert bench.feedback.residual(0) is None
    assert bench.counts.pushes_refused == 1


def test_an_outer_gradient_that_cannot_be_encoded_is_declined() -> None:
    link = Link()
    bench = Bench(link)
    bench.push(torch.tensor([1.0, float("nan"), 0.0]))
    assert link.calls == 0


def test_a_pull_is_posted_before_the_push_that_it_answers() -> None:
    link = Link()
    bench = Bench(link)
    posted: list[PullOrder] = []
    link.after_call = lambda: posted.append(posted_by(bench))
    bench.push()
    assert posted == [PullOrder(NOW, 0, 5)]


def posted_by(bench: Bench) -> PullOrder:
    post = bench.pull_queue.next_post()
    assert post is not None
    return post.order


def test_nothing_is_posted_to_a_syncer_that_lets_no_pull_wait() -> None:
    bench = Bench(Link())
    bench.pull_queue.session_begins(NOW, posted_pulls=False)
    bench.push()
    bench.pull_queue.close()
    assert bench.pull_queue.next_post() is None


def test_nothing_is_posted_for_what_is_declined() -> None:
    bench = Bench(Link())
    bench.push(torch.tensor([1.0, float("nan"), 0.0]))
    bench.pull_queue.close()
    assert bench.pull_queue.next_post() is None
