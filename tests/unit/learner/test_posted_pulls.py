"""Pulls that are posted before their version is made, and pulls of existing versions: neither delays the other."""

import pytest
import torch

from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.pull_queue import MergedFragment, Post, PullOrder, PullQueue
from diloco.learner.mailboxes.wakeup import Wakeup
from tests.support.scripted_condition import NothingToDoError, ScriptedCondition

NOW, LATER, RESTARTED = Membership("1", 1), Membership("1", 2), Membership("2", 1)


class Call:
    """A pull under way, as gRPC has it."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def condition() -> ScriptedCondition:
    """A condition that raises an error on a wait without a further event."""
    return ScriptedCondition()


@pytest.fixture
def pull_queue(condition: ScriptedCondition) -> PullQueue:
    made = PullQueue(Wakeup())
    made._condition = condition
    made.session_begins(NOW, posted_pulls=True)
    return made


def posted(pull_queue: PullQueue, version: int, fragment: int = 0) -> Post:
    pull_queue.post(PullOrder(NOW, fragment, version))
    post = pull_queue.next_post()
    assert post is not None
    return post


def test_a_worker_is_woken_by_what_it_can_pull(pull_queue: PullQueue, condition: ScriptedCondition) -> None:
    first, post = PullOrder(NOW, 0, 5), posted(pull_queue, 7, fragment=1)
    condition.events = [lambda: pull_queue.want(first)]
    assert pull_queue.next_order() == first
    later, whole = PullOrder(NOW, 0, 6), PullOrder(NOW, 1, 7)
    # One that is being pulled, and one that is posted: neither is pulled again until that has ended.
    pull_queue.want(later)
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


def test_a_waiter_is_woken_by_what_it_can_post(pull_queue: PullQueue, condition: ScriptedCondition) -> None:
    condition.events = [lambda: pull_queue.post(PullOrder(NOW, 0, 5))]
    first = pull_queue.next_post()
    assert first is not None
    pull_queue.post(PullOrder(NOW, 0, 5))
    with pytest.raises(NothingToDoError):
        pull_queue.next_post()
    pull_queue.post(PullOrder(NOW, 0, 6))
    condition.events = [lambda: pull_queue.post_ended(first)]
    second = pull_queue.next_post()
    assert second is not None
    assert condition.events == []
    assert second.order == PullOrder(NOW, 0, 6)
    pull_queue.post_ended(second)
    with pytest.raises(NothingToDoError):
        pull_queue.next_post()
    condition.events = [pull_queue.close]
    assert pull_queue.next_post() is None


def test_a_pull_that_is_posted_already_is_not_posted_again(pull_queue: PullQueue) -> None:
    first = posted(pull_queue, 5)
    pull_queue.post(PullOrder(NOW, 0, 5))
    pull_queue.post_ended(first)
    with pytest.raises(NothingToDoError):
        pull_queue.next_post()


def test_the_end_of_a_session_clears_the_orders_and_refuses_posts(pull_queue: PullQueue) -> None:
    pull_queue.want(PullOrder(NOW, 0, 5))
    pull_queue.session_over()
    pull_queue.post(PullOrder(NOW, 0, 5))
    for look in (pull_queue.next_order, pull_queue.next_post):
        with pytest.raises(NothingToDoError):
            look()


def test_a_wish_may_be_granted_by_an_update_unless_it_says_otherwise(pull_queue: PullQueue) -> None:
    posted(pull_queue, 5)
    pull_queue.want(PullOrder(NOW, 0, 5))
    with pytest.raises(NothingToDoError):
        pull_queue.next_order()


def test_the_notice_of_a_version_waits_for_the_pull_that_was_posted_for_it(pull_queue: PullQueue) -> None:
    post = posted(pull_queue, 5)
    pull_queue.want(PullOrder(NOW, 0, 5))
    pull_queue.want(PullOrder(NOW, 1, 1))
    assert pull_queue.next_order() == PullOrder(NOW, 1, 1)
    pull_queue.post_ended(post)
    assert pull_queue.next_order() == PullOrder(NOW, 0, 5)


def test_an_earlier_version_is_pulled_while_a_later_one_is_waited_for(pull_queue: PullQueue) -> None:
    posted(pull_queue, 5)
    pull_queue.want(PullOrder(NOW, 0, 4))
    assert pull_queue.next_order() == PullOrder(NOW, 0, 4)


def test_a_whole_fragment_is_pulled_though_an_update_of_it_is_posted(pull_queue: PullQueue) -> None:
    posted(pull_queue, 5)
    pull_queue.want(PullOrder(NOW, 0, 5, whole=True))
    assert pull_queue.next_order() == PullOrder(NOW, 0, 5, whole=True)


def test_an_order_for_a_whole_fragment_stays_one_after_the_notice_of_it(pull_queue: PullQueue) -> None:
    pull_queue.want(PullOrder(NOW, 0, 5, whole=True))
    pull_queue.want(PullOrder(NOW, 0, 5))
    assert pull_queue.next_order() == PullOrder(NOW, 0, 5, whole=True)


def test_a_post_that_no_waiter_has_taken_gives_way_to_the_notice(pull_queue: PullQueue) -> None:
    pull_queue.post(PullOrder(NOW, 0, 5))
    pull_queue.post(PullOrder(NOW, 1, 6))
    pull_queue.want(PullOrder(NOW, 0, 5))
    post = pull_queue.next_post()
    assert post is not None
    assert post.order == PullOrder(NOW, 1, 6)
    assert pull_queue.next_order() == PullOrder(NOW, 0, 5)


def test_one_post_of_a_fragment_waits_at_a_time_and_a_repeated_one_is_none(pull_queue: PullQueue) -> None:
    first = posted(pull_queue, 5)
    pull_queue.post(PullOrder(NOW, 0, 5))
    pull_queue.post(PullOrder(NOW, 1, 3))
    pull_queue.post(PullOrder(NOW, 0, 6))
    other = pull_queue.next_post()
    assert other is not None
    assert other.order == PullOrder(NOW, 1, 3)
    pull_queue.post_ended(first)
    following = pull_queue.next_post()
    assert following is not None
    assert following.order == PullOrder(NOW, 0, 6)


def test_the_end_of_a_session_cancels_posted_pulls_and_frees_the_fragment(pull_queue: PullQueue) -> None:
    post, call = posted(pull_queue, 5), Call()
    post.posting.begin(call)
    pull_queue.post(PullOrder(NOW, 1, 5))
    pull_queue.session_over()
    assert call.cancelled
    pull_queue.session_begins(LATER, posted_pulls=True)
    pull_queue.want(PullOrder(LATER, 0, 5))
    # The thread that waits has not noticed yet.
    assert pull_queue.next_order() == PullOrder(LATER, 0, 5)
    pull_queue.post_ended(post)
    pull_queue.post(PullOrder(LATER, 2, 7))
    following = pull_queue.next_post()
    assert following is not None
    assert following.order == PullOrder(LATER, 2, 7)


def test_a_pull_withdrawn_before_it_begins_is_cancelled_when_it_begins(pull_queue: PullQueue) -> None:
    post, call = posted(pull_queue, 5), Call()
    pull_queue.session_over()
    post.posting.begin(call)
    assert call.cancelled


@pytest.mark.parametrize("membership", [LATER, RESTARTED])
def test_nothing_is_posted_for_a_session_that_is_over(pull_queue: PullQueue, membership: Membership) -> None:
    pull_queue.session_over()
    pull_queue.session_begins(membership, posted_pulls=True)
    pull_queue.post(PullOrder(NOW, 0, 5))
    with pytest.raises(NothingToDoError):
        pull_queue.next_post()


def test_closing_withdraws_what_is_posted_and_ends_the_waiters(pull_queue: PullQueue) -> None:
    post, call = posted(pull_queue, 5), Call()
    post.posting.begin(call)
    pull_queue.close()
    assert call.cancelled
    assert pull_queue.next_post() is None


def test_of_two_pulls_of_a_fragment_the_newer_version_stays(pull_queue: PullQueue) -> None:
    newer = MergedFragment(NOW, 0, 6, torch.zeros(1))
    pull_queue.arrived(newer)
    pull_queue.arrived(MergedFragment(NOW, 0, 5, torch.zeros(1)))
    assert pull_queue.take() == [newer]


def test_what_lands_from_a_syncer_of_before_does_not_replace_what_is_there(pull_queue: PullQueue) -> None:
    pull_queue.session_begins(RESTARTED, posted_pulls=True)
    present = MergedFragment(RESTARTED, 0, 2, torch.zeros(1))
    pull_queue.arrived(present)
    pull_queue.arrived(MergedFragment(NOW, 0, 9, torch.zeros(1)))
    assert pull_queue.take() == [present]


def test_what_lands_rings_and_a_second_of_its_version_does_not() -> None:
    wakeup = Wakeup()
    pull_queue = PullQueue(wakeup)
    first, second = (MergedFragment(NOW, 0, 6, torch.zeros(1)) for _ in range(2))
    pull_queue.arrived(first)
    assert wakeup.notices == 1
    pull_queue.arrived(second)
    assert wakeup.notices == 1
    (taken,) = pull_queue.take()
    assert taken is first
