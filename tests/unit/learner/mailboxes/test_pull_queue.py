"""Fragments to pull and fragments that wait to be swapped in: the newest wins."""

import pytest
import torch

from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.pull_queue import MergedFragment, PullOrder, PullQueue
from diloco.learner.mailboxes.wakeup import Wakeup

FIRST = Membership("1", 1)
SECOND = Membership("1", 2)
RESTARTED = Membership("2", 1)


def arrival(fragment: int, version: int, membership: Membership = FIRST) -> MergedFragment:
    return MergedFragment(membership, fragment, version, torch.zeros(1))


@pytest.fixture
def pull_queue() -> PullQueue:
    return PullQueue(Wakeup())


def test_a_newer_version_replaces_one_that_waits(pull_queue: PullQueue) -> None:
    pull_queue.arrived(arrival(0, 1))
    newer = arrival(0, 2)
    pull_queue.arrived(newer)
    assert pull_queue.waiting_version(SECOND, 0) == 2
    assert pull_queue.take() == [newer]
    assert pull_queue.take() == []


def test_what_waits_from_another_epoch_is_no_reason_not_to_pull(pull_queue: PullQueue) -> None:
    pull_queue.arrived(arrival(0, 9))
    assert pull_queue.waiting_version(RESTARTED, 0) is None


def test_a_fragment_is_pulled_by_one_worker_at_a_time(pull_queue: PullQueue) -> None:
    first, second, other = PullOrder(FIRST, 0, 1), PullOrder(FIRST, 0, 2), PullOrder(FIRST, 1, 1)
    pull_queue.want(first)
    assert pull_queue.next_order() == first
    pull_queue.want(second)
    pull_queue.want(other)
    assert pull_queue.next_order() == other
    pull_queue.done(first)
    assert pull_queue.next_order() == second


def test_an_older_order_does_not_replace_a_newer_one(pull_queue: PullQueue) -> None:
    pull_queue.want(PullOrder(FIRST, 0, 3))
    pull_queue.want(PullOrder(FIRST, 0, 2))
    assert pull_queue.next_order() == PullOrder(FIRST, 0, 3)


def test_what_is_to_be_loaded_goes_before_newer_versions(pull_queue: PullQueue) -> None:
    for fragment in range(4):
        pull_queue.want(PullOrder(FIRST, fragment, 1, load=True))
    loaded: list[int] = []
    # A link that carries a fragment in the time of two merges: the newest are always 0 and 2.
    for merge in range(0, 8, 2):
        order = pull_queue.next_order()
        assert order is not None
        loaded.append(order.fragment)
        for fragment in (merge + 1) % 4, (merge + 2) % 4:
            awaited = fragment not in loaded
            pull_queue.want(PullOrder(FIRST, fragment, 2 + merge // 4, load=awaited))
        pull_queue.done(order)
    assert sorted(loaded) == [0, 1, 2, 3]


def test_of_fragments_that_wait_to_be_pulled_the_newest_goes_first(pull_queue: PullQueue) -> None:
    for fragment, version in ((0, 5), (1, 5), (2, 5), (0, 6)):
        pull_queue.want(PullOrder(FIRST, fragment, version))
    pulled = []
    for _ in range(3):
        order = pull_queue.next_order()
        assert order is not None
        pulled.append(order.fragment)
    assert pulled == [0, 2, 1]


def test_closing_ends_the_workers(pull_queue: PullQueue) -> None:
    pull_queue.close()
    assert pull_queue.next_order() is None
