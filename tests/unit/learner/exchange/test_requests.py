"""Requests for outer gradients: the newest wins, and what is staged is answered at once."""

from collections.abc import Callable

import pytest
import torch

from diloco.learner.exchange.orders import Membership, Wakeup
from diloco.learner.exchange.requests import GradientRequest, Requests
from diloco.learner.training.capture import Capture

FIRST = Membership("1", 1)
SECOND = Membership("1", 2)


def capture_of(fragment: int, base_version: int = 0) -> Capture:
    return Capture(fragment, base_version, 1, 1, torch.zeros(1), torch.zeros(1), None)


@pytest.fixture
def requests() -> Requests:
    return Requests(Wakeup(), fragments=4, ahead=2)


def test_the_newest_request_for_a_fragment_replaces_the_one_before(requests: Requests) -> None:
    requests.put(GradientRequest(FIRST, 0, 1, 1))
    requests.put(GradientRequest(FIRST, 0, 1, 2))
    assert requests.take() == [GradientRequest(FIRST, 0, 1, 2)]
    assert requests.take() == []


def test_a_request_that_the_loop_has_to_answer_wakes_it() -> None:
    wakeup = Wakeup()
    requests = Requests(wakeup, fragments=4, ahead=2)
    requests.put(GradientRequest(FIRST, 0, 1, 1))
    assert wakeup.notices == 1
    requests.stage([capture_of(1)])
    requests.put(GradientRequest(FIRST, 1, 1, 1))
    assert wakeup.notices == 1


def test_a_capture_older_than_what_was_sent_answers_no_later_request(requests: Requests) -> None:
    first = GradientRequest(FIRST, 0, 1, 1)
    requests.put(first)
    requests.stage([capture_of(0)])
    requests.sent(first)
    requests.not_merged(0, 1)
    assert requests.put(GradientRequest(FIRST, 0, 2, 1)) is None


OUTCOMES: dict[str, Callable[[Requests], None]] = {
    "it came back": lambda requests: requests.received(0),
    "it was not merged": lambda requests: requests.not_merged(0, 5),
}


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize("staged_again", [False, True], ids=["nothing staged", "staged again"])
@pytest.mark.parametrize("staged", [False, True], ids=["sent", "answered at once"])
def test_the_next_version_waits_for_the_outcome_of_the_one_before(
    requests: Requests, outcome: Callable[[Requests], None], *, staged: bool, staged_again: bool
) -> None:
    """Its steps may be merged already, and must not be sent twice."""
    if staged:
        requests.stage([capture_of(0)])
        assert requests.put(GradientRequest(FIRST, 0, 5, 1)) is not None
    else:
        requests.sent(GradientRequest(FIRST, 0, 5, 1))
    if staged_again:
        requests.stage([capture_of(0)])
    following = GradientRequest(FIRST, 0, 6, 1)
    assert requests.put(following) is None
    assert requests.take() == []
    outcome(requests)
    assert requests.take() == [following]


def test_a_repeated_request_for_the_same_version_is_answered(requests: Requests) -> None:
    requests.sent(GradientRequest(FIRST, 0, 5, 1))
    again = GradientRequest(SECOND, 0, 5, 2)
    requests.put(again)
    assert requests.take() == [again]


def test_requests_end_with_their_session(requests: Requests) -> None:
    requests.put(GradientRequest(FIRST, 0, 1, 1))
    requests.session_over()
    assert requests.take() == []


def test_a_request_for_what_is_staged_is_answered_at_once(requests: Requests) -> None:
    assert requests.expected() == ()
    requests.put(GradientRequest(FIRST, 2, 1, 1))
    assert requests.expected() == (3, 0)
    requests.stage([capture_of(3), capture_of(0)])
    answer = requests.put(GradientRequest(FIRST, 3, 1, 1))
    assert answer is not None
    assert answer.fragment == 3
    assert [request.fragment for request in requests.take()] == [2]
    assert requests.expected() == (0, 1)


def test_a_request_answered_from_what_is_staged_replaces_a_waiting_one(requests: Requests) -> None:
    requests.put(GradientRequest(FIRST, 0, 5, 1))
    requests.stage([capture_of(0)])
    assert requests.put(GradientRequest(FIRST, 0, 5, 2)) is not None
    assert requests.take() == []


def test_what_is_staged_ends_with_a_received_version_or_with_the_session(requests: Requests) -> None:
    requests.stage([capture_of(0), capture_of(1)])
    requests.received(0)
    assert requests.put(GradientRequest(FIRST, 0, 2, 1)) is None
    requests.session_over()
    assert requests.put(GradientRequest(SECOND, 1, 2, 1)) is None


def test_as_many_are_staged_as_were_requested_in_one_step_and_one_more() -> None:
    requests = Requests(Wakeup(), fragments=12, ahead=2)
    requests.put(GradientRequest(FIRST, 0, 1, 1))
    assert requests.expected() == (1, 2)
    requests.stage([])
    for fragment in range(1, 5):
        requests.put(GradientRequest(FIRST, fragment, 1, 1))
    assert requests.expected() == (5, 6, 7, 8, 9)


def test_no_more_are_staged_than_the_model_has() -> None:
    requests = Requests(Wakeup(), fragments=3, ahead=2)
    for version in range(1, 5):
        for fragment in range(3):
            requests.put(GradientRequest(FIRST, fragment, version, 1))
    assert sorted(requests.expected()) == [0, 1, 2]


def test_a_burst_of_requests_is_forgotten_after_some_steps() -> None:
    requests = Requests(Wakeup(), fragments=12, ahead=2)
    for fragment in range(6):
        requests.put(GradientRequest(FIRST, fragment, 1, 1))
    assert len(requests.expected()) == 7
    for _ in range(8):
        requests.stage([])
    assert requests.expected() == (6, 7)


def test_nothing_is_staged_that_is_under_way() -> None:
    requests = Requests(Wakeup(), fragments=4, ahead=4)
    requests.put(GradientRequest(FIRST, 3, 1, 1))
    requests.sent(GradientRequest(FIRST, 1, 1, 1))
    assert requests.expected() == (0, 2, 3)
