"""The mailboxes between a learner's threads: newest wins, bounded, and what belongs to an earlier admission counts for
nothing."""

import threading

import pytest
import torch

from diloco.learner.arrivals import Arrivals, MergedFragment, Wish
from diloco.learner.asks import Ask, Asks
from diloco.learner.bell import Bell
from diloco.learner.capture import Capture
from diloco.learner.departures import Departures, OuterGradient
from diloco.learner.feedback import ErrorFeedback
from diloco.learner.membership import Holdings, Membership
from diloco.learner.orders import Ending, EndKind, EvaluationOrder, Orders
from diloco.wire.messages import EvaluationWanted, Progress

FIRST = Membership("1", 1)
SECOND = Membership("1", 2)
RESTARTED = Membership("2", 1)


def arrival(fragment: int, version: int, membership: Membership = FIRST) -> MergedFragment:
    return MergedFragment(membership, fragment, version, torch.zeros(1))


def capture_of(fragment: int, base_version: int = 0) -> Capture:
    return Capture(fragment, base_version, 1, 1, torch.zeros(1), torch.zeros(1), None)


def gradient(fragment: int, version: int) -> OuterGradient:
    return OuterGradient(Ask(FIRST, fragment, version, 1), capture_of(fragment, version - 1))


class TestHoldings:
    def test_nothing_is_held_before_it_is_received(self) -> None:
        holdings = Holdings(2)
        holdings.admitted(FIRST, [0, 1])
        assert holdings.to_join_with() == ("", ())
        assert not holdings.complete

    def test_the_last_fragment_awaited_completes_the_admission(self) -> None:
        holdings = Holdings(2)
        holdings.admitted(FIRST, [0, 1])
        assert holdings.received("1", 0, 4) is None
        assert holdings.received("1", 1, 7) == FIRST
        assert holdings.complete
        assert holdings.to_join_with() == ("1", (4, 7))

    def test_an_admission_without_load_keeps_what_is_held(self) -> None:
        holdings = Holdings(1)
        holdings.admitted(FIRST, [0])
        holdings.received("1", 0, 4)
        assert holdings.admitted(SECOND, [])
        assert holdings.is_news("1", 0, 5)
        assert not holdings.is_news("1", 0, 4)

    def test_another_epoch_holds_nothing_though_versions_are_lower(self) -> None:
        holdings = Holdings(1)
        holdings.admitted(FIRST, [0])
        holdings.received("1", 0, 9)
        holdings.admitted(RESTARTED, [0])
        assert holdings.is_news("2", 0, 3)
        assert holdings.received("1", 0, 10) is None
        assert holdings.received("2", 0, 3) == RESTARTED

    def test_completion_goes_to_the_admission_that_waits_now(self) -> None:
        holdings = Holdings(1)
        holdings.admitted(FIRST, [0])
        holdings.admitted(SECOND, [0])
        assert holdings.received("1", 0, 1) == SECOND


class TestAsks:
    def test_the_newest_ask_of_a_fragment_replaces_the_one_before(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        asks.put(Ask(FIRST, 0, 1, 1))
        asks.put(Ask(FIRST, 0, 1, 2))
        assert asks.take() == [Ask(FIRST, 0, 1, 2)]
        assert asks.take() == []

    def test_an_ask_that_the_loop_has_to_answer_rings(self) -> None:
        bell = Bell()
        asks = Asks(bell, fragments=4, ahead=2)
        asks.put(Ask(FIRST, 0, 1, 1))
        assert bell.rings == 1
        asks.lay_out([capture_of(1)])
        asks.put(Ask(FIRST, 1, 1, 1))
        assert bell.rings == 1

    def test_a_copy_from_before_what_was_sent_is_no_answer_to_a_later_ask(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        first = Ask(FIRST, 0, 1, 1)
        asks.put(first)
        asks.lay_out([capture_of(0)])
        asks.sent(first)
        asks.not_merged(0, 1)
        assert asks.put(Ask(FIRST, 0, 2, 1)) is None

    def test_what_may_be_merged_already_is_not_brought_twice(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        asks.sent(Ask(FIRST, 0, 5, 1))
        following = Ask(FIRST, 0, 6, 1)
        asks.put(following)
        assert asks.take() == []
        asks.received(0)
        assert asks.take() == [following]

    def test_what_was_not_merged_may_be_brought_again(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        asks.sent(Ask(FIRST, 0, 5, 1))
        following = Ask(FIRST, 0, 6, 1)
        asks.put(following)
        asks.not_merged(0, 5)
        assert asks.take() == [following]

    def test_a_repeated_ask_for_the_same_version_is_answered(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        asks.sent(Ask(FIRST, 0, 5, 1))
        again = Ask(SECOND, 0, 5, 2)
        asks.put(again)
        assert asks.take() == [again]

    def test_asks_end_with_their_session(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        asks.put(Ask(FIRST, 0, 1, 1))
        asks.session_over()
        assert asks.take() == []

    def test_an_ask_for_what_is_laid_out_is_answered_at_once(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        assert asks.expected() == ()
        asks.put(Ask(FIRST, 2, 1, 1))
        assert asks.expected() == (3, 0)
        asks.lay_out([capture_of(3), capture_of(0)])
        answer = asks.put(Ask(FIRST, 3, 1, 1))
        assert answer is not None
        assert answer.fragment == 3
        assert [ask.fragment for ask in asks.take()] == [2]
        assert asks.expected() == (0, 1)

    def test_what_was_answered_at_once_is_not_brought_twice(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        asks.lay_out([capture_of(0)])
        assert asks.put(Ask(FIRST, 0, 5, 1)) is not None
        asks.lay_out([capture_of(0)])
        following = Ask(FIRST, 0, 6, 1)
        assert asks.put(following) is None
        assert asks.take() == []
        asks.received(0)
        assert asks.take() == [following]

    def test_an_ask_that_is_answered_at_once_takes_the_place_of_one_that_waited(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        asks.put(Ask(FIRST, 0, 5, 1))
        asks.lay_out([capture_of(0)])
        assert asks.put(Ask(FIRST, 0, 5, 2)) is not None
        assert asks.take() == []

    def test_what_is_laid_out_is_measured_from_what_is_held(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        asks.lay_out([capture_of(0), capture_of(1)])
        asks.received(0)
        assert asks.put(Ask(FIRST, 0, 2, 1)) is None
        asks.session_over()
        assert asks.put(Ask(SECOND, 1, 2, 1)) is None

    def test_what_is_laid_out_waits_like_any_answer_for_a_version_it_may_be_part_of(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=2)
        asks.sent(Ask(FIRST, 0, 5, 1))
        asks.lay_out([capture_of(0)])
        assert asks.put(Ask(FIRST, 0, 6, 1)) is None
        assert asks.take() == []
        asks.received(0)
        assert asks.take() == [Ask(FIRST, 0, 6, 1)]

    def test_as_many_are_laid_out_as_were_asked_for_in_one_step_and_one_more(self) -> None:
        asks = Asks(Bell(), fragments=12, ahead=2)
        asks.put(Ask(FIRST, 0, 1, 1))
        assert asks.expected() == (1, 2)
        asks.lay_out([])
        for fragment in range(1, 5):
            asks.put(Ask(FIRST, fragment, 1, 1))
        assert asks.expected() == (5, 6, 7, 8, 9)

    def test_no_more_are_laid_out_than_the_model_has(self) -> None:
        asks = Asks(Bell(), fragments=3, ahead=2)
        for version in range(1, 5):
            for fragment in range(3):
                asks.put(Ask(FIRST, fragment, version, 1))
        assert sorted(asks.expected()) == [0, 1, 2]

    def test_a_burst_of_asks_is_forgotten_after_some_steps(self) -> None:
        asks = Asks(Bell(), fragments=12, ahead=2)
        for fragment in range(6):
            asks.put(Ask(FIRST, fragment, 1, 1))
        assert len(asks.expected()) == 7
        for _ in range(8):
            asks.lay_out([])
        assert asks.expected() == (6, 7)

    def test_nothing_is_laid_out_that_is_under_way(self) -> None:
        asks = Asks(Bell(), fragments=4, ahead=4)
        asks.put(Ask(FIRST, 3, 1, 1))
        asks.sent(Ask(FIRST, 1, 1, 1))
        assert asks.expected() == (0, 2, 3)


class TestErrorFeedback:
    def test_a_residual_counts_once_its_outer_gradient_is_merged(self) -> None:
        feedback = ErrorFeedback()
        lost = torch.ones(3)
        feedback.encoded(0, 5, lost)
        assert feedback.residual(0) is None
        feedback.outcome(0, 5, merged=True)
        assert feedback.residual(0) is lost

    def test_a_residual_of_a_dropped_outer_gradient_never_counts(self) -> None:
        before = torch.ones(3)
        feedback = ErrorFeedback({0: before})
        feedback.encoded(0, 5, torch.zeros(3))
        feedback.outcome(0, 5, merged=False)
        feedback.outcome(0, 6, merged=True)
        assert feedback.residual(0) is before

    def test_the_outcome_of_an_earlier_version_says_nothing_about_a_later_one(self) -> None:
        feedback = ErrorFeedback()
        lost = torch.ones(3)
        feedback.encoded(0, 6, lost)
        feedback.outcome(0, 5, merged=True)
        assert feedback.residual(0) is None
        feedback.outcome(0, 6, merged=True)
        assert feedback.residual(0) is lost

    def test_an_unknown_outcome_keeps_the_residual_before(self) -> None:
        before = torch.ones(3)
        feedback = ErrorFeedback({0: before})
        feedback.encoded(0, 5, torch.zeros(3))
        feedback.session_over()
        feedback.outcome(0, 5, merged=True)
        assert feedback.snapshot() == {0: before}


class TestArrivals:
    def test_a_newer_version_replaces_one_that_waits(self) -> None:
        arrivals = Arrivals(Bell())
        arrivals.landed(arrival(0, 1))
        newer = arrival(0, 2)
        arrivals.landed(newer)
        assert arrivals.waiting_version(SECOND, 0) == 2
        assert arrivals.take() == [newer]
        assert arrivals.take() == []

    def test_what_waits_from_another_epoch_is_no_reason_not_to_pull(self) -> None:
        arrivals = Arrivals(Bell())
        arrivals.landed(arrival(0, 9))
        assert arrivals.waiting_version(RESTARTED, 0) is None

    def test_a_fragment_is_pulled_by_one_worker_at_a_time(self) -> None:
        arrivals = Arrivals(Bell())
        first, second, other = Wish(FIRST, 0, 1), Wish(FIRST, 0, 2), Wish(FIRST, 1, 1)
        arrivals.want(first)
        assert arrivals.next_wish() == first
        arrivals.want(second)
        arrivals.want(other)
        assert arrivals.next_wish() == other
        arrivals.done(first)
        assert arrivals.next_wish() == second

    def test_an_older_wish_does_not_replace_a_newer_one(self) -> None:
        arrivals = Arrivals(Bell())
        arrivals.want(Wish(FIRST, 0, 3))
        arrivals.want(Wish(FIRST, 0, 2))
        assert arrivals.next_wish() == Wish(FIRST, 0, 3)

    def test_of_fragments_that_wait_to_be_pulled_the_newest_goes_first(self) -> None:
        arrivals = Arrivals(Bell())
        for fragment, version in ((0, 5), (1, 5), (2, 5), (0, 6)):
            arrivals.want(Wish(FIRST, fragment, version))
        pulled = []
        for _ in range(3):
            wish = arrivals.next_wish()
            assert wish is not None
            pulled.append(wish.fragment)
        assert pulled == [0, 2, 1]

    def test_closing_ends_the_workers(self) -> None:
        arrivals = Arrivals(Bell())
        arrivals.close()
        assert arrivals.next_wish() is None


class TestDepartures:
    def test_a_newer_outer_gradient_replaces_one_that_no_worker_has_taken(self) -> None:
        departures = Departures()
        departures.offer(gradient(0, 1))
        newer = gradient(0, 2)
        departures.offer(newer)
        assert departures.next() is newer

    def test_one_under_way_is_overtaken_by_a_newer_one(self) -> None:
        departures = Departures()
        first, second = gradient(0, 1), gradient(0, 2)
        departures.offer(first)
        assert departures.next() is first
        assert not departures.is_overtaken(first)
        departures.offer(second)
        assert departures.is_overtaken(first)

    def test_it_is_idle_once_everything_is_sent(self) -> None:
        departures = Departures()
        sent = gradient(0, 1)
        departures.offer(sent)
        assert not departures.wait_until_idle(0.0)
        assert departures.next() is sent
        assert not departures.wait_until_idle(0.0)
        departures.done(sent)
        assert departures.wait_until_idle(0.0)

    def test_what_waits_ends_with_its_session(self) -> None:
        departures = Departures()
        departures.offer(gradient(0, 1))
        departures.session_over()
        assert departures.wait_until_idle(0.0)


class TestOrders:
    def test_the_first_end_counts(self) -> None:
        orders = Orders(Bell())
        assert orders.ending() is None
        orders.end(Ending(EndKind.FINISHED, "enough"))
        orders.end(Ending(EndKind.REFUSED, "late"))
        orders.stop("SIGTERM")
        assert orders.ending() == Ending(EndKind.FINISHED, "enough")

    def test_a_failed_worker_ends_the_inner_loop_with_its_error(self) -> None:
        orders = Orders(Bell())
        failure = ZeroDivisionError("in a worker")
        orders.fail(failure)
        with pytest.raises(ZeroDivisionError) as raised:
            orders.ending()
        assert raised.value is failure

    def test_progress_never_goes_back(self) -> None:
        orders = Orders(Bell())
        orders.progressed(Progress(60, 100, 6))
        orders.progressed(Progress(40, 100, 4))
        assert orders.progress == 0.6
        orders.progressed(Progress(300, 100, 30))
        assert orders.progress == 1.0

    def test_an_evaluation_put_back_gives_way_to_a_newer_one(self) -> None:
        orders = Orders(Bell())
        old = EvaluationOrder(FIRST, EvaluationWanted(0, (1,), final=False))
        new = EvaluationOrder(FIRST, EvaluationWanted(1, (2,), final=True))
        orders.evaluate(new)
        orders.put_back(old)
        assert orders.take_evaluation() is new
        assert orders.take_evaluation() is None


def test_a_ring_between_looking_and_waiting_is_not_missed() -> None:
    bell = Bell()
    seen = bell.rings
    bell.ring()
    bell.wait(seen, timeout_seconds=3600.0)


def test_a_bell_wakes_who_waits() -> None:
    bell = Bell()
    seen = bell.rings
    waiter = threading.Thread(target=bell.wait, args=(seen, 3600.0))
    waiter.start()
    bell.ring()
    waiter.join()
