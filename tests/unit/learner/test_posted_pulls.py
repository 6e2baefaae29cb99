"""Pulls that are posted before their version is made, beside those of what is there: neither holds up the other."""

import pytest
import torch

from diloco.learner.arrivals import Arrivals, MergedFragment, Post, Wish
from diloco.learner.bell import Bell
from diloco.learner.membership import Membership
from support.scripted_condition import NothingToDoError, ScriptedCondition

NOW, LATER, RESTARTED = Membership("1", 1), Membership("1", 2), Membership("2", 1)


class Call:
    """A pull under way, as gRPC has it."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def condition() -> ScriptedCondition:
    """Whoever would wait without anything to happen gets an error."""
    return ScriptedCondition()


@pytest.fixture
def arrivals(condition: ScriptedCondition) -> Arrivals:
    made = Arrivals(Bell())
    made._condition = condition
    made.session_begins(NOW, posted_pulls=True)
    return made


def posted(arrivals: Arrivals, version: int, fragment: int = 0) -> Post:
    arrivals.post(Wish(NOW, fragment, version))
    post = arrivals.next_post()
    assert post is not None
    return post


def test_a_worker_is_woken_by_what_it_can_pull(arrivals: Arrivals, condition: ScriptedCondition) -> None:
    first, post = Wish(NOW, 0, 5), posted(arrivals, 7, fragment=1)
    condition.events = [lambda: arrivals.want(first)]
    assert arrivals.next_wish() == first
    later, whole = Wish(NOW, 0, 6), Wish(NOW, 1, 7)
    # One that is under way, and one that a post brings: neither is pulled until that has ended.
    arrivals.want(later)
    arrivals.want(whole)
    condition.events = [lambda: arrivals.done(first)]
    assert (arrivals.next_wish(), condition.events) == (later, [])
    condition.events = [lambda: arrivals.post_ended(post)]
    assert (arrivals.next_wish(), condition.events) == (whole, [])
    arrivals.done(later)
    arrivals.done(whole)
    with pytest.raises(NothingToDoError):
        arrivals.next_wish()
    condition.events = [arrivals.close]
    assert arrivals.next_wish() is None


def test_a_waiter_is_woken_by_what_it_can_post(arrivals: Arrivals, condition: ScriptedCondition) -> None:
    condition.events = [lambda: arrivals.post(Wish(NOW, 0, 5))]
    first = arrivals.next_post()
    assert first is not None
    arrivals.post(Wish(NOW, 0, 5))
    with pytest.raises(NothingToDoError):
        arrivals.next_post()
    arrivals.post(Wish(NOW, 0, 6))
    condition.events = [lambda: arrivals.post_ended(first)]
    second = arrivals.next_post()
    assert second is not None
    assert condition.events == []
    assert second.wish == Wish(NOW, 0, 6)
    arrivals.post_ended(second)
    with pytest.raises(NothingToDoError):
        arrivals.next_post()
    condition.events = [arrivals.close]
    assert arrivals.next_post() is None


def test_a_pull_that_is_posted_already_is_not_posted_again(arrivals: Arrivals) -> None:
    first = posted(arrivals, 5)
    arrivals.post(Wish(NOW, 0, 5))
    arrivals.post_ended(first)
    with pytest.raises(NothingToDoError):
        arrivals.next_post()


def test_the_end_of_the_session_forgets_what_is_wished_for_and_lets_nothing_be_posted(arrivals: Arrivals) -> None:
    arrivals.want(Wish(NOW, 0, 5))
    arrivals.session_over()
    arrivals.post(Wish(NOW, 0, 5))
    for look in (arrivals.next_wish, arrivals.next_post):
        with pytest.raises(NothingToDoError):
            look()


def test_a_wish_may_be_granted_by_an_update_unless_it_says_otherwise(arrivals: Arrivals) -> None:
    posted(arrivals, 5)
    arrivals.want(Wish(NOW, 0, 5))
    with pytest.raises(NothingToDoError):
        arrivals.next_wish()


def test_the_notice_of_a_version_waits_for_the_pull_that_was_posted_for_it(arrivals: Arrivals) -> None:
    post = posted(arrivals, 5)
    arrivals.want(Wish(NOW, 0, 5))
    arrivals.want(Wish(NOW, 1, 1))
    assert arrivals.next_wish() == Wish(NOW, 1, 1)
    arrivals.post_ended(post)
    assert arrivals.next_wish() == Wish(NOW, 0, 5)


def test_an_earlier_version_is_pulled_while_a_later_one_is_waited_for(arrivals: Arrivals) -> None:
    posted(arrivals, 5)
    arrivals.want(Wish(NOW, 0, 4))
    assert arrivals.next_wish() == Wish(NOW, 0, 4)


def test_a_whole_fragment_is_pulled_though_an_update_of_it_is_posted(arrivals: Arrivals) -> None:
    posted(arrivals, 5)
    arrivals.want(Wish(NOW, 0, 5, whole=True))
    assert arrivals.next_wish() == Wish(NOW, 0, 5, whole=True)


def test_that_a_fragment_is_wanted_whole_is_not_forgotten_with_the_notice_of_it(arrivals: Arrivals) -> None:
    arrivals.want(Wish(NOW, 0, 5, whole=True))
    arrivals.want(Wish(NOW, 0, 5))
    assert arrivals.next_wish() == Wish(NOW, 0, 5, whole=True)


def test_a_post_that_no_waiter_has_taken_gives_way_to_the_notice(arrivals: Arrivals) -> None:
    arrivals.post(Wish(NOW, 0, 5))
    arrivals.post(Wish(NOW, 1, 6))
    arrivals.want(Wish(NOW, 0, 5))
    post = arrivals.next_post()
    assert post is not None
    assert post.wish == Wish(NOW, 1, 6)
    assert arrivals.next_wish() == Wish(NOW, 0, 5)


def test_one_post_of_a_fragment_waits_at_a_time_and_a_repeated_one_is_none(arrivals: Arrivals) -> None:
    first = posted(arrivals, 5)
    arrivals.post(Wish(NOW, 0, 5))
    arrivals.post(Wish(NOW, 1, 3))
    arrivals.post(Wish(NOW, 0, 6))
    other = arrivals.next_post()
    assert other is not None
    assert other.wish == Wish(NOW, 1, 3)
    arrivals.post_ended(first)
    following = arrivals.next_post()
    assert following is not None
    assert following.wish == Wish(NOW, 0, 6)


def test_the_end_of_the_session_withdraws_what_is_posted_and_frees_the_fragment(arrivals: Arrivals) -> None:
    post, call = posted(arrivals, 5), Call()
    post.posting.begin(call)
    arrivals.post(Wish(NOW, 1, 5))
    arrivals.session_over()
    assert call.cancelled
    arrivals.session_begins(LATER, posted_pulls=True)
    arrivals.want(Wish(LATER, 0, 5))
    # Its waiter has not noticed yet.
    assert arrivals.next_wish() == Wish(LATER, 0, 5)
    arrivals.post_ended(post)
    arrivals.post(Wish(LATER, 2, 7))
    following = arrivals.next_post()
    assert following is not None
    assert following.wish == Wish(LATER, 2, 7)


def test_a_pull_that_is_withdrawn_before_it_begins_is_cancelled_when_it_does(arrivals: Arrivals) -> None:
    post, call = posted(arrivals, 5), Call()
    arrivals.session_over()
    post.posting.begin(call)
    assert call.cancelled


@pytest.mark.parametrize("membership", [LATER, RESTARTED])
def test_nothing_is_posted_for_a_session_that_is_over(arrivals: Arrivals, membership: Membership) -> None:
    arrivals.session_over()
    arrivals.session_begins(membership, posted_pulls=True)
    arrivals.post(Wish(NOW, 0, 5))
    with pytest.raises(NothingToDoError):
        arrivals.next_post()


def test_closing_withdraws_what_is_posted_and_ends_the_waiters(arrivals: Arrivals) -> None:
    post, call = posted(arrivals, 5), Call()
    post.posting.begin(call)
    arrivals.close()
    assert call.cancelled
    assert arrivals.next_post() is None


def test_of_two_pulls_of_a_fragment_the_newer_version_stays(arrivals: Arrivals) -> None:
    newer = MergedFragment(NOW, 0, 6, torch.zeros(1))
    arrivals.landed(newer)
    arrivals.landed(MergedFragment(NOW, 0, 5, torch.zeros(1)))
    assert arrivals.take() == [newer]


def test_what_lands_from_a_syncer_of_before_does_not_replace_what_is_there(arrivals: Arrivals) -> None:
    arrivals.session_begins(RESTARTED, posted_pulls=True)
    present = MergedFragment(RESTARTED, 0, 2, torch.zeros(1))
    arrivals.landed(present)
    arrivals.landed(MergedFragment(NOW, 0, 9, torch.zeros(1)))
    assert arrivals.take() == [present]


def test_what_lands_rings_and_a_second_of_its_version_does_not() -> None:
    bell = Bell()
    arrivals = Arrivals(bell)
    first, second = (MergedFragment(NOW, 0, 6, torch.zeros(1)) for _ in range(2))
    arrivals.landed(first)
    assert bell.rings == 1
    arrivals.landed(second)
    assert bell.rings == 1
    (taken,) = arrivals.take()
    assert taken is first
