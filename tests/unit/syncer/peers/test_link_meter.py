import pytest

from diloco.runtime.busy import Moved
from diloco.syncer.peers.link_meter import WINDOW_SECONDS, LinkMeter, Rates, RecentSeconds
from tests.support.hand_clock import HandClock

FIRST, SECOND = "r/p/0", "r/p/1"


def push(meter: LinkMeter, clock: HandClock, seconds: float, size_bytes: int) -> None:
    meter.push_began(FIRST)
    clock.now += seconds
    meter.push_ended(FIRST, size_bytes)


def test_a_rate_is_of_the_time_in_which_something_came() -> None:
    clock = HandClock()
    meter = LinkMeter(clock)
    push(meter, clock, 1.0, 0)
    for _ in range(10):
        meter.sample(clock.now)
        push(meter, clock, 2.0, 1000)
        clock.now += 8.0
    meter.sample(clock.now)
    assert meter.rates(FIRST) == Rates(up=500.0)


def test_pulls_are_the_learners_own_account() -> None:
    meter = LinkMeter(HandClock())
    for turn in range(5):
        meter.pulled(FIRST, Moved(2.0 * turn, 3000 * turn))
        meter.sample(10.0 * turn)
    assert meter.rates(FIRST) == Rates(down=1500.0)
    assert meter.rates(SECOND) == Rates()


def test_a_new_process_counts_from_its_own_beginning() -> None:
    meter = LinkMeter(HandClock())
    for now, moved in ((0.0, Moved(50.0, 5000)), (10.0, Moved(60.0, 6000)), (20.0, Moved(1.0, 300))):
        meter.pulled(FIRST, moved)
        meter.sample(now)
    assert meter.rates(FIRST).down is None
    meter.pulled(FIRST, Moved(3.0, 900))
    meter.sample(30.0)
    assert meter.rates(FIRST).down == 300.0


def test_what_was_long_ago_is_forgotten() -> None:
    meter = LinkMeter(HandClock())
    moved = Moved()
    for turn in range(100):
        rate = 100 if turn < 50 else 10
        moved = Moved(moved.busy_seconds + 1.0, moved.bytes + rate)
        meter.pulled(FIRST, moved)
        meter.sample(10.0 * turn)
    assert meter.rates(FIRST).down == pytest.approx(10.0)
    assert WINDOW_SECONDS < 500


def test_a_duration_is_the_median_of_the_window() -> None:
    lately = RecentSeconds()
    for seconds in (9.0, *(0.5,) * 13, *(0.1,) * 11):
        lately.add(seconds)
    assert lately.median == 0.5
    for _ in range(13):
        lately.add(0.1)
    assert lately.median == 0.1


def test_a_time_too_short_to_be_measured_gives_no_rate() -> None:
    meter = LinkMeter(HandClock())
    for turn in range(5):
        meter.pulled(FIRST, Moved(1e-5 * turn, 3000 * turn))
        meter.sample(10.0 * turn)
    assert meter.rates(FIRST) == Rates()
