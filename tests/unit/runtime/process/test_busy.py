from diloco.runtime.process.busy import BusyMeter, Moved
from tests.support.hand_clock import HandClock


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
