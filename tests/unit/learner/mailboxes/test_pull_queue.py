"""Pulls of existing versions, pulls that are posted before theirs is made, and what waits to be swapped in."""

import pytest
import torch

from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.pull_queue import MergedFragment, PullOrder, PullQueue
from diloco.learner.mailboxes.wakeup import Wakeup
from tests.support.scripted_condition import NothingToDoError, ScriptedCondition, script

NOW, LATER, RESTARTED = Membership("1", 1), Membership("1", 2), Membership("2", 1)


class Call:
    """A pull under way, as gRPC has it."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def pull_queue() -> PullQueue:
    made = PullQueue(Wakeup())
    made.session_begins(NOW)
    return made


@pytest.fixture
def conditions(pull_queue: PullQueue) -> list[ScriptedCondition]:
    """Those for orders and for posts, which raise an error on a wait without a further event."""
    return script(pull_queue, "_work", "_posting")


@pytest.fixture(autouse=True)
def condition(conditions: list[ScriptedCondition]) -> ScriptedCondition:
    return conditions[0]


@pytest.fixture
def posting(conditions: list[ScriptedCondition]) -> ScriptedCondition:
    return conditions[1]


def order_of(pull_queue: PullQueue) -> PullOrder:
    """The next order, which is taken."""
    order = pull_queue.next_order()
    assert order is not None
    return order


def post_of(pull_queue: PullQueue) -> PullOrder:
    """The next post, which is taken."""
    post = pull_queue.next_post()
    assert post is not None
    return post


def posted(pull_queue: PullQueue, version: int, fragment: int = 0) -> PullOrder:
    pull_queue.post(PullOrder(NOW, fragment, version))
    return post_of(pull_queue)


def test_a_worker_is_woken_by_what_it_can_pull(pull_queue: PullQueue, condition: ScriptedCondition) -> None:
    first, post = PullOrder(NOW, 0, 5), posted(pull_queue, 7, fragment=1)
    condition.events = [lambda: pull_queue.want(first)]
    assert pull_queue.next_order() == first
    later, whole = PullOrder(NOW, 0, 6), PullOrder(NOW, 1, 7)
    # One that is being pulled, and one that is posted: neither is pulled again until that has ended.
    pull_queue.want(later)
    pull_queue.want(first)  # an older one does not replace a newer one
    pull_queue.want(whole)
    condition.events = [lambda: pull_queue.done(first)]
    assert (pull_queue.next_order(), condition.events) == (later, [])
    condition.events = [lambda: pull_queue.post_ended(post)]
    assert (pull_queue.next_order(), condition.events) == (whole, [])
    pull_queue.done(later)
    pull_queue.done(whole)
    with pytest.raises(NothingToDoError):
        pull_queue.next_order()
    condition.events = [pull_queue.close]
    assert pull_queue.next_order() is None


def test_what_is_for_one_thread_wakes_one(pull_queue: PullQueue, conditions: list[ScriptedCondition]) -> None:
    first = PullOrder(NOW, 0, 5)
    pull_queue.post(first)
    pull_queue.post_ended(post_of(pull_queue))
    pull_queue.want(first)
    pull_queue.done(order_of(pull_queue))
    orders, posts = (condition.notices for condition in conditions)
    assert (orders, posts) == ([1, 1, 1], [1, 1])


def test_a_waiter_is_woken_by_what_it_can_post(pull_queue: PullQueue, posting: ScriptedCondition) -> None:
    posting.events = [lambda: pull_queue.post(PullOrder(NOW, 0, 5))]
    first, call = post_of(pull_queue), Call()
    pull_queue.post(PullOrder(NOW, 0, 5))  # which is posted already
    with pytest.raises(NothingToDoError):
        pull_queue.next_post()
    pull_queue.post(PullOrder(NOW, 0, 6))
    assert posted(pull_queue, 3, fragment=1) == PullOrder(NOW, 1, 3)
    posting.events = [lambda: pull_queue.post_ended(first)]
    second = post_of(pull_queue)
    assert posting.events == []
    assert second == PullOrder(NOW, 0, 6)
    second.handle.begin(call)
    with pytest.raises(NothingToDoError):
        pull_queue.next_post()
    posting.events = [pull_queue.close]
    assert pull_queue.next_post() is None
    assert call.cancelled


def test_the_end_of_a_session_clears_the_orders_and_refuses_posts(pull_queue: PullQueue) -> None:
    pull_queue.want(PullOrder(NOW, 0, 5))
    pull_queue.session_over()
    pull_queue.post(PullOrder(NOW, 0, 5))
    for look in (pull_queue.next_order, pull_queue.next_post):
        with pytest.raises(NothingToDoError):
            look()


@pytest.mark.parametrize("order", [PullOrder(NOW, 0, 4), PullOrder(NOW, 0, 5, whole=True)], ids=["earlier", "whole"])
def test_what_a_post_does_not_bring_is_pulled_beside_it(pull_queue: PullQueue, order: PullOrder) -> None:
    posted(pull_queue, 5)
    pull_queue.want(order)
    assert pull_queue.next_order() == order


def test_an_order_for_a_whole_fragment_stays_one_after_the_notice_of_it(pull_queue: PullQueue) -> None:
    pull_queue.want(PullOrder(NOW, 0, 5, whole=True))
    pull_queue.want(PullOrder(NOW, 0, 5))
    assert pull_queue.next_order() == PullOrder(NOW, 0, 5, whole=True)


def test_a_post_that_no_waiter_has_taken_gives_way_to_the_notice(pull_queue: PullQueue) -> None:
    pull_queue.post(PullOrder(NOW, 0, 5))
    pull_queue.post(PullOrder(NOW, 1, 6))
    pull_queue.want(PullOrder(NOW, 0, 5))
    assert post_of(pull_queue) == PullOrder(NOW, 1, 6)
    assert pull_queue.next_order() == PullOrder(NOW, 0, 5)


def test_the_end_of_a_session_cancels_posted_pulls_and_frees_the_fragment(pull_queue: PullQueue) -> None:
    post, call = posted(pull_queue, 5), Call()
    post.handle.begin(call)
    pull_queue.post(PullOrder(NOW, 1, 5))
    pull_queue.session_over()
    assert call.cancelled
    pull_queue.session_begins(LATER)
    pull_queue.want(PullOrder(LATER, 0, 5))
    # The thread that waits has not noticed yet.
    assert pull_queue.next_order() == PullOrder(LATER, 0, 5)
    pull_queue.post_ended(post)
    pull_queue.post(PullOrder(LATER, 2, 7))
    assert post_of(pull_queue) == PullOrder(LATER, 2, 7)


def test_a_pull_of_an_earlier_session_is_withdrawn_and_delays_no_load(pull_queue: PullQueue) -> None:
    pull_queue.want(PullOrder(NOW, 0, 5))
    order, call = order_of(pull_queue), Call()
    order.handle.begin(call)
    pull_queue.session_over()
    assert call.cancelled
    pull_queue.session_begins(LATER)
    pull_queue.want(PullOrder(LATER, 0, 5, load=True))
    load = order_of(pull_queue)
    assert load == PullOrder(LATER, 0, 5, load=True)
    pull_queue.done(order)  # its worker has noticed now
    pull_queue.want(PullOrder(LATER, 0, 6))
    with pytest.raises(NothingToDoError):
        pull_queue.next_order()
    pull_queue.done(load)
    assert order_of(pull_queue) == PullOrder(LATER, 0, 6)


def test_a_late_order_of_an_earlier_session_replaces_no_load(pull_queue: PullQueue) -> None:
    pull_queue.session_over()
    pull_queue.session_begins(LATER)
    load = PullOrder(LATER, 0, 5, load=True)
    pull_queue.want(load)
    pull_queue.want(PullOrder(NOW, 0, 6))
    assert order_of(pull_queue) == load


def test_a_pull_withdrawn_before_it_begins_is_cancelled_when_it_begins(pull_queue: PullQueue) -> None:
    post, call = posted(pull_queue, 5), Call()
    pull_queue.session_over()
    post.handle.begin(call)
    assert call.cancelled


@pytest.mark.parametrize("membership", [LATER, RESTARTED])
def test_nothing_is_posted_for_a_session_that_is_over(pull_queue: PullQueue, membership: Membership) -> None:
    pull_queue.session_over()
    pull_queue.session_begins(membership)
    pull_queue.post(PullOrder(NOW, 0, 5))
    with pytest.raises(NothingToDoError):
        pull_queue.next_post()


def test_what_lands_from_a_syncer_of_before_does_not_replace_what_is_there(pull_queue: PullQueue) -> None:
    pull_queue.session_begins(RESTARTED)
    present = MergedFragment(RESTARTED, 0, 2, torch.zeros(1))
    pull_queue.arrived(present)
    pull_queue.arrived(MergedFragment(NOW, 0, 9, torch.zeros(1)))
    assert pull_queue.take() == [present]


def test_the_newest_version_waits_and_only_what_replaces_another_rings() -> None:
    wakeup = Wakeup()
    pull_queue = PullQueue(wakeup)
    first, newer = (MergedFragment(NOW, 0, version, torch.zeros(1)) for version in (5, 6))
    rung = []
    for arrival in (first, newer, MergedFragment(NOW, 0, 6, torch.zeros(1)), first):
        pull_queue.arrived(arrival)
        rung.append(wakeup.notices)
    assert rung == [1, 2, 2, 2]
    assert pull_queue.waiting_version(LATER, 0) == 6
    (taken,) = pull_queue.take()
    assert taken is newer
    assert pull_queue.take() == []


def test_what_waits_from_another_epoch_is_no_reason_not_to_pull(pull_queue: PullQueue) -> None:
    pull_queue.arrived(MergedFragment(NOW, 0, 9, torch.zeros(1)))
    assert pull_queue.waiting_version(RESTARTED, 0) is None


def test_what_is_to_be_loaded_goes_before_newer_versions(pull_queue: PullQueue) -> None:
    for fragment in range(4):
        pull_queue.want(PullOrder(NOW, fragment, 1, load=True))
    loaded: list[int] = []
    # A link that carries a fragment in the time of two merges: the newest are always 0 and 2.
    for merge in range(0, 8, 2):
        order = order_of(pull_queue)
        loaded.append(order.fragment)
        for fragment in (merge + 1) % 4, (merge + 2) % 4:
            awaited = fragment not in loaded
            pull_queue.want(PullOrder(NOW, fragment, 2 + merge // 4, load=awaited))
        pull_queue.done(order)
    assert sorted(loaded) == [0, 1, 2, 3]


def test_of_fragments_that_wait_to_be_pulled_the_newest_goes_first(pull_queue: PullQueue) -> None:
    for fragment, version in ((0, 5), (1, 5), (2, 5), (0, 6)):
        pull_queue.want(PullOrder(NOW, fragment, version))
    assert [order_of(pull_queue).fragment for _ in range(3)] == [0, 2, 1]
