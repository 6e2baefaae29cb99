"""Orders of the syncer and the process to the inner loop: evaluate, stop, end."""

from typing import TYPE_CHECKING

import pytest

from diloco.learner.exchange.orders import Ending, EndKind, EvaluationOrder, Membership, Orders, Wakeup
from diloco.wire.messages import EvaluationWanted, Progress

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = Membership("1", 1)


@pytest.fixture
def orders() -> Orders:
    return Orders(Wakeup())


def test_the_first_end_counts(orders: Orders) -> None:
    assert orders.ending() is None
    orders.end(Ending(EndKind.FINISHED, "enough"))
    orders.end(Ending(EndKind.REFUSED, "late"))
    stopping = [orders.stopping]
    orders.stop("SIGTERM")
    assert [*stopping, orders.stopping] == [False, True]
    assert orders.ending() == Ending(EndKind.FINISHED, "enough")


def test_a_failed_worker_ends_the_inner_loop_with_its_error(orders: Orders) -> None:
    failure = ZeroDivisionError("in a worker")
    orders.fail(failure)
    with pytest.raises(ZeroDivisionError) as raised:
        orders.ending()
    assert raised.value is failure


def test_whatever_is_for_the_loop_wakes_it() -> None:
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


def test_an_evaluation_ends_with_its_session(orders: Orders) -> None:
    orders.evaluate(EvaluationOrder(FIRST, EvaluationWanted(0, (1,), final=False)))
    orders.session_over()
    assert orders.take_evaluation() is None


def test_progress_goes_back_only_with_a_larger_budget(orders: Orders) -> None:
    orders.progressed(Progress(60, 100, 6))
    orders.progressed(Progress(40, 100, 4))
    assert orders.progress == 0.6
    orders.progressed(Progress(40, 240, 4))
    assert orders.progress == 0.25
    orders.progressed(Progress(300, 100, 30))
    assert orders.progress == 1.0


@pytest.mark.parametrize(("tokens", "budget", "progress"), [(5, 0, 0.0), (0, 1, 0.0), (1, 1, 1.0), (2, 1, 1.0)])
def test_a_job_without_a_budget_makes_no_progress(orders: Orders, tokens: int, budget: int, progress: float) -> None:
    orders.progressed(Progress(tokens, budget, 0))
    assert orders.progress == progress


def test_an_evaluation_put_back_gives_way_to_a_newer_one(orders: Orders) -> None:
    old = EvaluationOrder(FIRST, EvaluationWanted(0, (1,), final=False))
    new = EvaluationOrder(FIRST, EvaluationWanted(1, (2,), final=True))
    orders.evaluate(new)
    orders.put_back(old)
    assert orders.take_evaluation() is new
    assert orders.take_evaluation() is None
