"""What a learner says that it holds, where it is found, and which orders stand."""

import threading

import torch

from diloco.learner.mailboxes.holdings import Holdings, Membership
from diloco.learner.mailboxes.pull_queue import MergedFragment, PullQueue
from diloco.learner.mailboxes.recovery_orders import HeldFragments, RecoveryOrder, RecoveryOrders
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.wire.messages import HeldWanted

NOW = Membership("3.ab", 1)
VALUES = [torch.full((2,), float(number)) for number in range(4)]


def made() -> tuple[HeldFragments, Holdings, PullQueue]:
    holdings, pulls = Holdings(3), PullQueue(Wakeup())
    holdings.admitted(NOW, [0, 1, 2])
    pulls.session_begins(NOW)
    return HeldFragments(holdings, pulls), holdings, pulls


def order(fragment: int = 0, version: int = 1, attempt: int = 1) -> RecoveryOrder:
    return RecoveryOrder(HeldWanted(fragment, version, attempt), lambda _: None)


def test_what_is_held_counts_even_if_the_model_is_not_complete() -> None:
    fragments, holdings, _ = made()
    assert fragments.to_join_with() == ("", ())
    assert fragments.find(0, 0) is fragments.find(99, 0) is None
    holdings.received("3.ab", 1, 0, VALUES[1])
    assert fragments.to_join_with() == ("3.ab", (0, 1, 0))
    found = fragments.find(1, 0)
    assert found is not None
    assert (found[0], found[1] is VALUES[1]) == ("3.ab", True)


def test_what_waits_to_be_swapped_in_is_held_too() -> None:
    fragments, holdings, pulls = made()
    for fragment in range(3):
        holdings.received("3.ab", fragment, 5, VALUES[fragment])
    pulls.arrived(MergedFragment(NOW, 2, 6, VALUES[3]))
    pulls.session_over()
    assert fragments.to_join_with() == ("3.ab", (6, 6, 7))
    newer, older = fragments.find(2, 6), fragments.find(2, 5)
    assert newer is not None
    assert newer[1] is VALUES[3]
    assert older is not None
    assert older[1] is VALUES[2]
    assert fragments.find(2, 7) is None


def test_what_is_of_an_earlier_epoch_is_not_held() -> None:
    fragments, holdings, pulls = made()
    holdings.received("3.ab", 0, 5, VALUES[0])
    pulls.arrived(MergedFragment(NOW, 1, 6, VALUES[1]))
    holdings.admitted(Membership("4.cd", 1), [0, 1, 2])
    assert fragments.to_join_with() == ("", ())
    assert fragments.find(1, 6) is None


def test_an_order_stands_until_its_session_is_over_or_another_comes() -> None:
    orders = RecoveryOrders()
    first, second, other = order(attempt=1), order(attempt=2), order(fragment=1)
    orders.put(first)
    orders.put(second)
    orders.put(other)
    assert not orders.is_current(first)
    assert orders.next() is second
    assert orders.is_current(second)
    orders.session_over()
    assert not orders.is_current(second)
    orders.put(first)
    assert orders.next() is first


def test_a_closed_mailbox_ends_its_workers() -> None:
    orders = RecoveryOrders()
    found: list[RecoveryOrder | None] = []
    worker = threading.Thread(target=lambda: found.append(orders.next()))
    worker.start()
    orders.close()
    worker.join(60)
    assert found == [None]
    orders.put(order())
    assert orders.next() is None
