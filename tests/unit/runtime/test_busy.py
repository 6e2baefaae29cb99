from diloco.runtime.busy import BusyMeter, Moved
from tests.support.hand_clock import HandClock


def test_transfers_one_after_the_other_add_up() -> None:
    clock = HandClock()
    meter = BusyMeter(clock)
    for _ in range(3):
        meter.begin()
        clock.now += 2.0
        meter.end(10)
        clock.now += 5.0
    assert meter.read() == Moved(6.0, 30)


def test_transfers_at_once_take_their_time_once() -> None:
    clock = HandClock()
    meter = BusyMeter(clock)
    meter.begin()
    clock.now += 1.0
    meter.begin()
    clock.now += 1.0
    meter.end(10)
    clock.now += 1.0
    assert meter.read() == Moved(3.0, 10)
    meter.end(20)
    assert meter.read() == Moved(3.0, 30)


def test_a_link_that_is_never_idle_is_busy_all_the_time() -> None:
    clock = HandClock()
    meter = BusyMeter(clock)
    meter.begin()
    for _ in range(10):
        meter.begin()
        clock.now += 1.0
        meter.end(5)
    assert meter.read() == Moved(10.0, 50)


def test_one_that_brought_nothing_took_its_time_all_the_same() -> None:
    clock = HandClock()
    meter = BusyMeter(clock)
    meter.begin()
    clock.now += 4.0
    meter.end(0)
    assert meter.read() == Moved(4.0, 0)
