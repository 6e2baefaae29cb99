"""The workers that send what a restarted syncer lacks: what they send, when they try again, and when they decline."""

import contextlib
import threading

import pytest
import torch

from diloco.learner.link.recovery_sender import RecoverySender
from diloco.learner.link.transfers import TransferContext, TransferCounts
from diloco.learner.mailboxes.holdings import Holdings, Membership
from diloco.learner.mailboxes.pull_queue import PullQueue
from diloco.learner.mailboxes.recovery_orders import HeldFragments, RecoveryOrder, RecoveryOrders
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.wire.errors import DeadlineError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import Declined, HeldWanted, PushHeader, PushReceipt
from tests.support.scripted_condition import NothingToDoError, ScriptedCondition
from tests.unit.learner.link.pushes import PushLink

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


class Bench:
    """A worker with its mailboxes, which holds version 7 of fragment 1."""

    def __init__(self, *fates: WireError | None) -> None:
        self.link, self.orders = PushLink(*fates), RecoveryOrders()
        self.orders._condition = ScriptedCondition()
        self.declined: list[Declined] = []
        holdings = Holdings(2)
        holdings.admitted(Membership("3.ab", 9), [0, 1])
        holdings.received("3.ab", 1, 7, VALUES)
        context = TransferContext(
            "r/p/0", self.link, lambda: None, lambda: 0.1, threading.Event(), lambda: -1.0, TransferCounts()
        )
        self._sender = RecoverySender(context, self.orders, HeldFragments(holdings, PullQueue(Wakeup())))

    def wanted(self, version: int = 7) -> list[PushHeader]:
        """Order it, and run the worker until it has nothing to do. Returns what has arrived."""
        self.orders.put(RecoveryOrder(HeldWanted(1, version, 4), self.declined.append))
        with contextlib.suppress(NothingToDoError):
            self._sender.run()
        return [header for header, _ in self.link.pushed]


def test_a_held_fragment_is_sent_as_it_was_received() -> None:
    bench = Bench()
    bench.wanted()
    assert bench.link.pushed == [(HEADER, VALUES.numpy().tobytes())]
    assert bench.declined == []


@pytest.mark.parametrize("error", [UnavailableError("broken"), DeadlineError("too slow")])
def test_what_did_not_arrive_is_sent_again(error: WireError) -> None:
    assert Bench(error, error).wanted() == [HEADER]


def test_a_refusal_is_not_argued_with() -> None:
    assert Bench(RefusedError("not asked of you")).wanted() == []


def test_bytes_that_the_syncer_does_not_know_are_not_sent_again() -> None:
    bench = Bench()
    bench.link.receipt = PushReceipt(accepted=False, reason="these are not the bytes")
    assert bench.wanted() == [HEADER]


def test_nothing_is_tried_again_once_the_session_is_over() -> None:
    bench = Bench(UnavailableError("broken"))
    bench.link.after_call = bench.orders.session_over
    assert bench.wanted() == []


def test_what_is_no_longer_held_is_declined() -> None:
    bench = Bench()
    assert bench.wanted(version=6) == []
    assert bench.declined == [Declined(0, 1, 6, 4)]
