"""The mailboxes between a learner's threads: newest wins, bounded, and what belongs to an earlier admission counts for
nothing."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.orders import Ending, EndKind, EvaluationOrder, Orders
from diloco.learner.mailboxes.pull_queue import MergedFragment, PullOrder, PullQueue
from diloco.learner.mailboxes.push_queue import OuterGradient, PushQueue
from diloco.learner.mailboxes.requests import GradientRequest, Requests
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.training.capture import Capture
from diloco.wire.messages import EvaluationWanted, Progress
from tests.support.hand_clock import HandClock
from tests.support.scripted_condition import ScriptedCondition

FIRST = Membership("1", 1)
SECOND = Membership("1", 2)
RESTARTED = Membership("2", 1)


def arrival(fragment: int, version: int, membership: Membership = FIRST) -> MergedFragment:
    return MergedFragment(membership, fragment, version, torch.zeros(1))


def capture_of(fragment: int, base_version: int = 0) -> Capture:
    return Capture(fragment, base_version, 1, 1, torch.zeros(1), torch.zeros(1), None)


def gradient(fragment: int, version: int) -> OuterGradient:
    return OuterGradient(GradientRequest(FIRST, fragment, version, 1), capture_of(fragment, version - 1))


class TestAsks:
    def test_the_newest_ask_of_a_fragment_replaces_the_one_before(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        requests.put(GradientRequest(FIRST, 0, 1, 1))
        requests.put(GradientRequest(FIRST, 0, 1, 2))
        assert requests.take() == [GradientRequest(FIRST, 0, 1, 2)]
        assert requests.take() == []

    def test_an_ask_that_the_loop_has_to_answer_rings(self) -> None:
        wakeup = Wakeup()
        requests = Requests(wakeup, fragments=4, ahead=2)
        requests.put(GradientRequest(FIRST, 0, 1, 1))
        assert wakeup.notices == 1
        requests.stage([capture_of(1)])
        requests.put(GradientRequest(FIRST, 1, 1, 1))
        assert wakeup.notices == 1

    def test_a_copy_from_before_what_was_sent_is_no_answer_to_a_later_ask(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        first = GradientRequest(FIRST, 0, 1, 1)
        requests.put(first)
        requests.stage([capture_of(0)])
        requests.sent(first)
        requests.not_merged(0, 1)
        assert requests.put(GradientRequest(FIRST, 0, 2, 1)) is None

    def test_what_may_be_merged_already_is_not_brought_twice(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        requests.sent(GradientRequest(FIRST, 0, 5, 1))
        following = GradientRequest(FIRST, 0, 6, 1)
        requests.put(following)
        assert requests.take() == []
        requests.received(0)
        assert requests.take() == [following]

    def test_what_was_not_merged_may_be_brought_again(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        requests.sent(GradientRequest(FIRST, 0, 5, 1))
        following = GradientRequest(FIRST, 0, 6, 1)
        requests.put(following)
        requests.not_merged(0, 5)
        assert requests.take() == [following]

    def test_a_repeated_ask_for_the_same_version_is_answered(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        requests.sent(GradientRequest(FIRST, 0, 5, 1))
        again = GradientRequest(SECOND, 0, 5, 2)
        requests.put(again)
        assert requests.take() == [again]

    def test_asks_end_with_their_session(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        requests.put(GradientRequest(FIRST, 0, 1, 1))
        requests.session_over()
        assert requests.take() == []

    def test_an_ask_for_what_is_laid_out_is_answered_at_once(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        assert requests.expected() == ()
        requests.put(GradientRequest(FIRST, 2, 1, 1))
        assert requests.expected() == (3, 0)
        requests.stage([capture_of(3), capture_of(0)])
        answer = requests.put(GradientRequest(FIRST, 3, 1, 1))
        assert answer is not None
        assert answer.fragment == 3
        assert [request.fragment for request in requests.take()] == [2]
        assert requests.expected() == (0, 1)

    def test_what_was_answered_at_once_is_not_brought_twice(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        requests.stage([capture_of(0)])
        assert requests.put(GradientRequest(FIRST, 0, 5, 1)) is not None
        requests.stage([capture_of(0)])
        following = GradientRequest(FIRST, 0, 6, 1)
        assert requests.put(following) is None
        assert requests.take() == []
        requests.received(0)
        assert requests.take() == [following]

    def test_an_ask_that_is_answered_at_once_takes_the_place_of_one_that_waited(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        requests.put(GradientRequest(FIRST, 0, 5, 1))
        requests.stage([capture_of(0)])
        assert requests.put(GradientRequest(FIRST, 0, 5, 2)) is not None
        assert requests.take() == []

    def test_what_is_laid_out_is_measured_from_what_is_held(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        requests.stage([capture_of(0), capture_of(1)])
        requests.received(0)
        assert requests.put(GradientRequest(FIRST, 0, 2, 1)) is None
        requests.session_over()
        assert requests.put(GradientRequest(SECOND, 1, 2, 1)) is None

    def test_what_is_laid_out_waits_like_any_answer_for_a_version_it_may_be_part_of(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=2)
        requests.sent(GradientRequest(FIRST, 0, 5, 1))
        requests.stage([capture_of(0)])
        assert requests.put(GradientRequest(FIRST, 0, 6, 1)) is None
        assert requests.take() == []
        requests.received(0)
        assert requests.take() == [GradientRequest(FIRST, 0, 6, 1)]

    def test_as_many_are_laid_out_as_were_asked_for_in_one_step_and_one_more(self) -> None:
        requests = Requests(Wakeup(), fragments=12, ahead=2)
        requests.put(GradientRequest(FIRST, 0, 1, 1))
        assert requests.expected() == (1, 2)
        requests.stage([])
        for fragment in range(1, 5):
            requests.put(GradientRequest(FIRST, fragment, 1, 1))
        assert requests.expected() == (5, 6, 7, 8, 9)

    def test_no_more_are_laid_out_than_the_model_has(self) -> None:
        requests = Requests(Wakeup(), fragments=3, ahead=2)
        for version in range(1, 5):
            for fragment in range(3):
                requests.put(GradientRequest(FIRST, fragment, version, 1))
        assert sorted(requests.expected()) == [0, 1, 2]

    def test_a_burst_of_asks_is_forgotten_after_some_steps(self) -> None:
        requests = Requests(Wakeup(), fragments=12, ahead=2)
        for fragment in range(6):
            requests.put(GradientRequest(FIRST, fragment, 1, 1))
        assert len(requests.expected()) == 7
        for _ in range(8):
            requests.stage([])
        assert requests.expected() == (6, 7)

    def test_nothing_is_laid_out_that_is_under_way(self) -> None:
        requests = Requests(Wakeup(), fragments=4, ahead=4)
        requests.put(GradientRequest(FIRST, 3, 1, 1))
        requests.sent(GradientRequest(FIRST, 1, 1, 1))
        assert requests.expected() == (0, 2, 3)


class TestArrivals:
    def test_a_newer_version_replaces_one_that_waits(self) -> None:
        pull_queue = PullQueue(Wakeup())
        pull_queue.arrived(arrival(0, 1))
        newer = arrival(0, 2)
        pull_queue.arrived(newer)
        assert pull_queue.waiting_version(SECOND, 0) == 2
        assert pull_queue.take() == [newer]
        assert pull_queue.take() == []

    def test_what_waits_from_another_epoch_is_no_reason_not_to_pull(self) -> None:
        pull_queue = PullQueue(Wakeup())
        pull_queue.arrived(arrival(0, 9))
        assert pull_queue.waiting_version(RESTARTED, 0) is None

    def test_a_fragment_is_pulled_by_one_worker_at_a_time(self) -> None:
        pull_queue = PullQueue(Wakeup())
        first, second, other = PullOrder(FIRST, 0, 1), PullOrder(FIRST, 0, 2), PullOrder(FIRST, 1, 1)
        pull_queue.want(first)
        assert pull_queue.next_order() == first
        pull_queue.want(second)
        pull_queue.want(other)
        assert pull_queue.next_order() == other
        pull_queue.done(first)
        assert pull_queue.next_order() == second

    def test_an_older_wish_does_not_replace_a_newer_one(self) -> None:
        pull_queue = PullQueue(Wakeup())
        pull_queue.want(PullOrder(FIRST, 0, 3))
        pull_queue.want(PullOrder(FIRST, 0, 2))
        assert pull_queue.next_order() == PullOrder(FIRST, 0, 3)

    def test_of_fragments_that_wait_to_be_pulled_the_newest_goes_first(self) -> None:
        pull_queue = PullQueue(Wakeup())
        for fragment, version in ((0, 5), (1, 5), (2, 5), (0, 6)):
            pull_queue.want(PullOrder(FIRST, fragment, version))
        pulled = []
        for _ in range(3):
            order = pull_queue.next_order()
            assert order is not None
            pulled.append(order.fragment)
        assert pulled == [0, 2, 1]

    def test_closing_ends_the_workers(self) -> None:
        pull_queue = PullQueue(Wakeup())
        pull_queue.close()
        assert pull_queue.next_order() is None


class TestDepartures:
    def test_a_newer_outer_gradient_replaces_one_that_no_worker_has_taken(self) -> None:
        push_queue = PushQueue()
        push_queue.offer(gradient(0, 1))
        newer = gradient(0, 2)
        push_queue.offer(newer)
        assert push_queue.next() is newer

    def test_one_under_way_is_overtaken_by_a_newer_one(self) -> None:
        push_queue = PushQueue()
        first, second = gradient(0, 1), gradient(0, 2)
        push_queue.offer(first)
        assert push_queue.next() is first
        assert not push_queue.is_superseded(first)
        push_queue.offer(second)
        assert push_queue.is_superseded(first)

    def test_it_is_idle_once_everything_is_sent(self) -> None:
        push_queue = PushQueue()
        sent = gradient(0, 1)
        push_queue.offer(sent)
        assert not push_queue.wait_until_idle(0.0)
        assert push_queue.next() is sent
        assert not push_queue.wait_until_idle(0.0)
        push_queue.done(sent)
        assert push_queue.wait_until_idle(0.0)

    def test_what_waits_ends_with_its_session(self) -> None:
        push_queue = PushQueue()
        push_queue.offer(gradient(0, 1))
        push_queue.session_over()
        assert push_queue.wait_until_idle(0.0)

    def test_a_worker_is_woken_by_what_it_can_send(self) -> None:
        push_queue, condition = PushQueue(), ScriptedCondition()
        push_queue._condition = condition
        first, second, later = gradient(0, 1), gradient(1, 1), gradient(0, 2)
        condition.events = [lambda: push_queue.offer(first)]
        assert push_queue.next() is first
        push_queue.offer(later)
        condition.events = [lambda: push_queue.offer(second), lambda: push_queue.done(first)]
        assert push_queue.next() is second
        assert push_queue.next() is later
        assert condition.events == []
        condition.events = [push_queue.close]
        assert push_queue.next() is None

    @pytest.mark.parametrize("end", [PushQueue.session_over, PushQueue.close])
    def test_who_waits_until_all_is_sent_is_woken_where_it_will_not_be(self, end: Callable[[PushQueue], None]) -> None:
        push_queue, condition = PushQueue(), ScriptedCondition()
        push_queue._condition = condition
        push_queue.offer(gradient(0, 1))
        condition.events = [lambda: end(push_queue)]
        assert push_queue.wait_until_idle(60.0)
        assert condition.waits == [60.0]


class TestOrders:
    def test_the_first_end_counts(self) -> None:
        orders = Orders(Wakeup())
        assert orders.ending() is None
        orders.end(Ending(EndKind.FINISHED, "enough"))
        orders.end(Ending(EndKind.REFUSED, "late"))
        orders.stop("SIGTERM")
        assert orders.ending() == Ending(EndKind.FINISHED, "enough")

    def test_a_failed_worker_ends_the_inner_loop_with_its_error(self) -> None:
        orders = Orders(Wakeup())
        failure = ZeroDivisionError("in a worker")
        orders.fail(failure)
        with pytest.raises(ZeroDivisionError) as raised:
            orders.ending()
        assert raised.value is failure

    def test_whatever_is_for_the_loop_wakes_it(self) -> None:
        wakeup = Wakeup()
        orders = Orders(wakeup)
        calls: list[Callable[[], None]] = [
            lambda: orders.evaluate(EvaluationOrder(FIRST, EvaluationWanted(0, (1,), final=False))),
            lambda: orders.end(Ending(EndKind.FINISHED, "enough")),
            lambda: orders.stop("SIGTERM"),
            lambda: orders.fail(ZeroDivisionError("in a worker")),
        ]
        notices = []
        for call in calls:
            call()
            notices.append(wakeup.notices)
        assert notices == [1, 2, 3, 4]

    def test_an_evaluation_ends_with_its_session(self) -> None:
        orders = Orders(Wakeup())
        orders.evaluate(EvaluationOrder(FIRST, EvaluationWanted(0, (1,), final=False)))
        orders.session_over()
        assert orders.take_evaluation() is None

    def test_progress_never_goes_back(self) -> None:
        orders = Orders(Wakeup())
        orders.progressed(Progress(60, 100, 6))
        orders.progressed(Progress(40, 100, 4))
        assert orders.progress == 0.6
        orders.progressed(Progress(300, 100, 30))
        assert orders.progress == 1.0

    @pytest.mark.parametrize(("tokens", "budget", "progress"), [(5, 0, 0.0), (0, 1, 0.0), (1, 1, 1.0), (2, 1, 1.0)])
    def test_a_job_without_a_budget_makes_no_progress(self, tokens: int, budget: int, progress: float) -> None:
        orders = Orders(Wakeup())
        orders.progressed(Progress(tokens, budget, 0))
        assert orders.progress == progress

    def test_it_is_stopping_once_it_is_told(self) -> None:
        orders = Orders(Wakeup())
        seen = [orders.stopping]
        orders.stop("SIGTERM")
        assert [*seen, orders.stopping] == [False, True]

    def test_an_evaluation_put_back_gives_way_to_a_newer_one(self) -> None:
        orders = Orders(Wakeup())
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
    clock, wakeup = HandClock(), Wakeup()
    monkeypatch.setattr("diloco.learner.mailboxes.wakeup.time", SimpleNamespace(monotonic=clock))
    wakeup._condition = condition = Timed(clock, 1.5, 0.25, 0.25)
    wakeup.wait(wakeup.notices, 2.0)
    assert condition.waits == [2.0, 0.5, 0.25]


def test_a_ring_between_looking_and_waiting_is_not_missed() -> None:
    wakeup = Wakeup()
    seen = wakeup.notices
    wakeup.notify()
    wakeup.wait(seen, timeout_seconds=3600.0)


def test_a_bell_wakes_who_waits() -> None:
    wakeup = Wakeup()
    seen = wakeup.notices
    waiter = threading.Thread(target=wakeup.wait, args=(seen, 3600.0))
    waiter.start()
    wakeup.notify()
    waiter.join()
