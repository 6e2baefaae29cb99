"""A process that the syncer has found stuck ends, even if its training thread hangs."""

import logging
import threading

import pytest

from diloco.learner.exchange.orders import Ending, EndKind, Orders, Wakeup
from diloco.learner.process.stuck import ended_if_stuck
from diloco.runtime.process.exits import EXIT_STUCK

WAIT_SECONDS = 60.0


def test_a_thread_that_hangs_is_ended_with_its_process(caplog: pytest.LogCaptureFixture) -> None:
    orders, codes, ended = Orders(Wakeup()), list[int](), threading.Event()

    def exit_process(code: int) -> None:
        codes.append(code)
        ended.set()

    with caplog.at_level(logging.ERROR), ended_if_stuck(orders, exit_process, end_seconds=0.0):
        orders.end(Ending(EndKind.STUCK, "Stuck: no step for 300 s"))
        assert ended.wait(WAIT_SECONDS), "the body never returns"
    assert codes == [EXIT_STUCK]
    assert "ending: Stuck: no step for 300 s; the training thread does not return" in caplog.text


@pytest.mark.parametrize("kind", [kind for kind in EndKind if kind is not EndKind.STUCK])
def test_other_ends_are_left_to_the_training_thread(kind: EndKind) -> None:
    orders, codes = Orders(Wakeup()), list[int]()
    before = threading.enumerate()
    with ended_if_stuck(orders, codes.append, end_seconds=0.0):
        orders.end(Ending(kind, "why"))
        assert threading.enumerate() == before
    assert codes == []


def test_one_that_returns_in_time_ends_by_itself() -> None:
    orders, codes = Orders(Wakeup()), list[int]()
    before = threading.enumerate()
    with ended_if_stuck(orders, codes.append, end_seconds=WAIT_SECONDS):
        orders.end(Ending(EndKind.STUCK, "why"))
        (timer,) = [thread for thread in threading.enumerate() if thread not in before]
    timer.join(WAIT_SECONDS)
    assert not timer.is_alive()
    assert codes == []
