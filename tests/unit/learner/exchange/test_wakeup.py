"""A notice wakes the inner loop, and none is missed."""

import threading

import pytest

from diloco.learner.exchange.orders import Wakeup
from tests.support.hand_clock import HandClock, clock_of
from tests.support.scripted_condition import ScriptedCondition


class Timed(ScriptedCondition):
    """A condition whose waits let time pass."""

    def __init__(self, clock: HandClock, *seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = list(seconds)

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        self._clock.now += self._seconds.pop(0)
        return True


def test_without_a_notice_it_waits_until_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, wakeup = clock_of("exchange.orders", monkeypatch), Wakeup()
    wakeup._condition = condition = Timed(clock, 1.5, 0.25, 0.25)
    wakeup.wait(wakeup.notices, 2.0)
    assert condition.waits == [2.0, 0.5, 0.25]


def test_a_notice_between_looking_and_waiting_is_not_missed() -> None:
    wakeup = Wakeup()
    seen = wakeup.notices
    wakeup.notify()
    wakeup.wait(seen, timeout_seconds=3600.0)


def test_a_notice_wakes_a_waiting_thread() -> None:
    wakeup = Wakeup()
    seen = wakeup.notices
    waiter = threading.Thread(target=wakeup.wait, args=(seen, 3600.0))
    waiter.start()
    wakeup.notify()
    waiter.join()
