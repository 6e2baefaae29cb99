"""The mailboxes between a learner's threads: newest wins, bounded, and what belongs to an earlier admission counts for
nothing."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from diloco.learner.arrivals import Arrivals, MergedFragment, Wish
from diloco.learner.asks import Ask, Asks
from diloco.learner.bell import Bell
from diloco.learner.capture import Capture
from diloco.learner.departures import Departures, OuterGradient
from diloco.learner.membership import Membership
from diloco.learner.orders import Ending, EndKind, EvaluationOrder, Orders
from diloco.wire.messages import EvaluationWanted, Progress
from support.hand_clock import HandClock
from support.scripted_condition import ScriptedCondition

FIRST = Membership("1", 1)
SECOND = Membership("1", 2)
RESTARTED = Membership("2", 1)


def arrival(fragment: int, version: int, membership: Membership = FIRST) -> MergedFragment:
    return MergedFragment(membership, fragment, version, torch.zeros(1))


def capture_of(fragment: int, base_version: int = 0) -> Capture:
    return Capture(fragment, base_version, 1, 1, torch.zeros(1), torch.zeros(1), None)


def gradient(fragment: int, version: int) -> OuterGradient:
    return OuterGradient(Ask(FIRST, fragment, version, 1), capture_of(fragment, version - 1))


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

    def test_a_worker_is_woken_by_what_it_can_send(self) -> None:
        departures, condition = Departures(), ScriptedCondition()
        departures._condition = condition
        first, second, later = gradient(0, 1), gradient(1, 1), gradient(0, 2)
        condition.events = [lambda: departures.offer(first)]
        assert departures.next() is first
        departures.offer(later)
        condition.events = [lambda: departures.offer(second), lambda: departures.done(first)]
        assert departures.next() is second
        assert departures.next() is later
        assert condition.events == []
        condition.events = [departures.close]
        assert departures.next() is None

    @pytest.mark.parametrize("end", [Departures.session_over, Departures.close])
    def test_who_waits_until_all_is_sent_is_woken_where_it_will_not_be(self, end: Callable[[Departures], None]) -> None:
        departures, condition = Departures(), ScriptedCondition()
        departures._condition = condition
        departures.offer(gradient(0, 1))
        condition.events = [lambda: end(departures)]
        assert departures.wait_until_idle(60.0)
        assert condition.waits == [60.0]


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

    def test_whatever_is_for_the_loop_wakes_it(self) -> None:
        bell = Bell()
        orders = Orders(bell)
        calls: list[Callable[[], None]] = [
            lambda: orders.evaluate(EvaluationOrder(FIRST, EvaluationWanted(0, (1,), final=False))),
            lambda: orders.end(Ending(EndKind.FINISHED, "enough")),
            lambda: orders.stop("SIGTERM"),
            lambda: orders.fail(ZeroDivisionError("in a worker")),
        ]
        rings = []
        for call in calls:
            call()
            rings.append(bell.rings)
        assert rings == [1, 2, 3, 4]

    def test_an_evaluation_ends_with_its_session(self) -> None:
        orders = Orders(Bell())
        orders.evaluate(EvaluationOrder(FIRST, EvaluationWanted(0, (1,), final=False)))
        orders.session_over()
        assert orders.take_evaluation() is None

    def test_progress_never_goes_back(self) -> None:
        orders = Orders(Bell())
        orders.progressed(Progress(60, 100, 6))
        orders.progressed(Progress(40, 100, 4))
        assert orders.progress == 0.6
        orders.progressed(Progress(300, 100, 30))
        assert orders.progress == 1.0

    @pytest.mark.parametrize(("tokens", "budget", "progress"), [(5, 0, 0.0), (0, 1, 0.0), (1, 1, 1.0), (2, 1, 1.0)])
    def test_a_job_without_a_budget_makes_no_progress(self, tokens: int, budget: int, progress: float) -> None:
        orders = Orders(Bell())
        orders.progressed(Progress(tokens, budget, 0))
        assert orders.progress == progress

    def test_it_is_stopping_once_it_is_told(self) -> None:
        orders = Orders(Bell())
        seen = [orders.stopping]
        orders.stop("SIGTERM")
        assert [*seen, orders.stopping] == [False, True]

    def test_an_evaluation_put_back_gives_way_to_a_newer_one(self) -> None:
        orders = Orders(Bell())
        old = EvaluationOrder(FIRST, EvaluationWanted(0, (1,), final=False))
        new = EvaluationOrder(FIRST, EvaluationWanted(1, (2,), final=True))
        orders.evaluate(new)
        orders.put_back(old)
        assert orders.take_evaluation() is new
        assert orders.take_evaluation() is None


class Timed(ScriptedCondition):
    """Time passes while one waits."""

    def __init__(self, clock: HandClock, *seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = list(seconds)

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        self._clock.now += self._seconds.pop(0)
        return True


def test_who_is_woken_by_nothing_waits_until_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, bell = HandClock(), Bell()
    monkeypatch.setattr("diloco.learner.bell.time", SimpleNamespace(monotonic=clock))
    bell._condition = condition = Timed(clock, 1.5, 0.25, 0.25)
    bell.wait(bell.rings, 2.0)
    assert condition.waits == [2.0, 0.5, 0.25]


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
