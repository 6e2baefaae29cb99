"""The workers that send what a restarted syncer lacks: what they send, when they try again, and when they decline."""

import threading
from typing import TYPE_CHECKING

import pytest
import torch

from diloco.learner.mailboxes.holdings import Holdings, Membership
from diloco.learner.mailboxes.pull_queue import PullQueue
from diloco.learner.mailboxes.recovery_orders import HeldFragments, RecoveryOrder, RecoveryOrders
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.recovery_sender import RecoverySender
from diloco.learner.transfers import TransferContext, TransferCounts
from diloco.wire.errors import DeadlineError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import Declined, HeldWanted, PullHeader, PushHeader, PushReceipt

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES = torch.tensor([1.0, -2.0, 0.5])
HEADER = PushHeader(
    learner="r/p/0",
    incarnation=0,
    epoch="3.ab",
    fragment=1,
    version=7,
    attempt=4,
    base_version=7,
    steps=0,
    tokens=0,
    codec="None",
    payload_bytes=12,
)


class Link:
    """The bulk side, scripted: each push meets the next of ``fates``; None is success."""

    def __init__(self, *fates: WireError | None) -> None:
        self.fates = list(fates)
        self.pushed: list[tuple[PushHeader, bytes]] = []
        self.then: Callable[[], None] = lambda: None
        self.receipt = PushReceipt(accepted=True)

    def push(self, header: PushHeader, payload: memoryview, *, deadline_seconds: float) -> PushReceipt:
        assert deadline_seconds > 0
        fate = self.fates.pop(0)
        if not self.fates:
            self.then()
        if fate is not None:
            raise fate
        self.pushed.append((header, bytes(payload)))
        return self.receipt

    def pull(self, *_: object, **__: object) -> PullHeader:
        raise AssertionError("a pull is not expected here")

    pull_posted = pull


class Bench:
    """A worker with its mailboxes, which holds version 7 of fragment 1."""

    def __init__(self, *fates: WireError | None) -> None:
        self.link, self.orders = Link(*fates), RecoveryOrders()
        self.declined: list[Declined] = []
        holdings = Holdings(2)
        holdings.admitted(Membership("3.ab", 9), [0, 1])
        holdings.received("3.ab", 1, 7, VALUES)
        context = TransferContext(
            learner="r/p/0",
            bulk=self.link,
            current=lambda: None,
            step_seconds=lambda: 0.1,
            stopped=threading.Event(),
            uniform=lambda: -1.0,
            counts=TransferCounts(),
        )
        self._sender = RecoverySender(context, self.orders, HeldFragments(holdings, PullQueue(Wakeup())))
        self.link.then = self.orders.close

    def wanted(self, version: int = 7) -> None:
        def decline(message: Declined) -> None:
            self.declined.append(message)
            self.orders.close()

        self.orders.put(RecoveryOrder(HeldWanted(1, version, 4), decline))
        self._sender.run()


def test_a_held_fragment_is_sent_as_it_was_received() -> None:
    bench = Bench(None)
    bench.wanted()
    assert bench.link.pushed == [(HEADER, VALUES.numpy().tobytes())]
    assert bench.declined == []


@pytest.mark.parametrize("error", [UnavailableError("broken"), DeadlineError("too slow")])
def test_what_did_not_arrive_is_sent_again(error: WireError) -> None:
    bench = Bench(error, error, None)
    bench.wanted()
    assert [header for header, _ in bench.link.pushed] == [HEADER]


def test_a_refusal_is_not_argued_with() -> None:
    bench = Bench(RefusedError("not asked of you"))
    bench.wanted()
    assert bench.link.fates == []
    assert bench.link.pushed == []


def test_bytes_that_the_syncer_does_not_know_are_not_sent_again() -> None:
    bench = Bench(None)
    bench.link.receipt = PushReceipt(accepted=False, reason="these are not the bytes")
    bench.wanted()
    assert len(bench.link.pushed) == 1


def test_nothing_is_tried_again_once_the_session_is_over() -> None:
    bench = Bench(UnavailableError("broken"))
    bench.wanted()  # the script closes the mailbox in the only push
    assert bench.link.pushed == []


def test_what_is_no_longer_held_is_declined() -> None:
    bench = Bench(None)
    bench.wanted(version=6)
    assert bench.declined == [Declined(0, 1, 6, 4)]
    assert bench.link.pushed == []
