"""Outer gradients to push: a newer one replaces an older one, and none is kept beyond its session."""

from collections.abc import Callable

import pytest
import torch

from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.push_queue import OuterGradient, PushQueue
from diloco.learner.mailboxes.requests import GradientRequest
from diloco.learner.training.capture import Capture
from tests.support.scripted_condition import script

FIRST, SECOND = Membership("1", 1), Membership("1", 2)


def gradient(fragment: int, version: int, membership: Membership = FIRST) -> OuterGradient:
    capture = Capture(fragment, version - 1, 1, 1, torch.zeros(1), torch.zeros(1), None)
    return OuterGradient(GradientRequest(membership, fragment, version, 1), capture)


@pytest.fixture
def push_queue() -> PushQueue:
    return PushQueue()


def test_a_newer_outer_gradient_replaces_one_that_no_worker_has_taken(push_queue: PushQueue) -> None:
    push_queue.offer(gradient(0, 1))
    newer = gradient(0, 2)
    push_queue.offer(newer)
    assert push_queue.next() is newer


def test_it_is_idle_once_everything_is_sent(push_queue: PushQueue) -> None:
    sent = gradient(0, 1)
    push_queue.offer(sent)
    assert not push_queue.wait_until_idle(0.0)
    assert push_queue.next() is sent
    assert not push_queue.wait_until_idle(0.0)
    push_queue.offer(gradient(3, 1))
    assert push_queue.pending() == (3, 0)
    waiting = push_queue.next()
    assert waiting is not None
    push_queue.done(sent)
    push_queue.done(waiting)
    assert push_queue.wait_until_idle(0.0)
    assert push_queue.pending() == ()


def test_a_worker_is_woken_by_what_it_can_send() -> None:
    push_queue = PushQueue()
    condition, _ = script(push_queue, "_work", "_idle")
    first, second, later = gradient(0, 1), gradient(1, 1), gradient(0, 2)
    condition.events = [lambda: push_queue.offer(first)]
    assert push_queue.next() is first
    push_queue.offer(later)
    condition.events = [lambda: push_queue.offer(second), lambda: push_queue.done(first)]
    assert push_queue.next() is second
    assert push_queue.next() is later
    assert condition.events == []
    assert set(condition.notices) == {1}, "each is for one worker"
    condition.events = [push_queue.close]
    assert push_queue.next() is None


def test_a_push_of_an_earlier_session_is_withdrawn_and_delays_none(push_queue: PushQueue) -> None:
    before, after = gradient(0, 1), gradient(0, 1, SECOND)
    push_queue.offer(before)
    assert push_queue.next() is before
    push_queue.session_over()
    assert before.handle.withdrawn
    push_queue.offer(after)
    assert push_queue.next() is after
    push_queue.done(before)
    assert not push_queue.wait_until_idle(0.0)
    push_queue.done(after)
    assert push_queue.wait_until_idle(0.0)


@pytest.mark.parametrize("end", [PushQueue.session_over, PushQueue.close])
def test_who_waits_until_all_is_sent_is_woken_where_it_will_not_be(end: Callable[[PushQueue], None]) -> None:
    push_queue = PushQueue()
    _, condition = script(push_queue, "_work", "_idle")
    push_queue.offer(gradient(0, 1))
    condition.events = [lambda: end(push_queue)]
    assert push_queue.wait_until_idle(60.0)
    assert condition.waits == [60.0]
