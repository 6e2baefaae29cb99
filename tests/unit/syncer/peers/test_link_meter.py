import pytest

from diloco.runtime.process.busy import Moved
from diloco.syncer.peers.link_meter import LinkMeter, Rates, RecentSeconds
from tests.support.hand_clock import HandClock

FIRST, SECOND = "r/p/0", "r/p/1"


def pulled(meter: LinkMeter, moved: Moved, now: float) -> bool:
    """The first learner tells its account, and it is looked at; returns whether it is sampled."""
    meter.pulled(FIRST, moved)
    return meter.sample(now)


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
        pulled(meter, Moved(2.0 * turn, 3000 * turn), 10.0 * turn)
    assert meter.rates(FIRST) == Rates(down=1500.0)
    assert meter.rates(SECOND) == Rates()


@pytest.mark.parametrize(
    "another",
    [Moved(70.0, 100), Moved(1.0, 7000)],
    ids=["less moved", "less time"],
)
def test_a_count_that_goes_back_is_of_another_process(another: Moved) -> None:
    meter = LinkMeter(HandClock())
    further = Moved(another.busy_seconds + 2.0, another.bytes + 600)
    for turn, moved in enumerate((Moved(50.0, 5000), Moved(60.0, 6000), another, further)):
        assert meter.rates(FIRST).down == (100.0 if turn == 2 else None)
        pulled(meter, moved, 10.0 * turn)
    assert meter.rates(FIRST).down == 300.0


def rate_after(samples: list[tuple[float, int]]) -> float | None:
    """The rate after samples (time, bytes in the second of transfer before it)."""
    meter = LinkMeter(HandClock())
    busy, total = 0.0, 0
    for now, more in samples:
        busy, total = busy + 1.0, total + more
        pulled(meter, Moved(busy, total), now)
    return meter.rates(FIRST).down


def test_what_was_more_than_two_minutes_ago_is_forgotten() -> None:
    samples = [(10.0 * turn, turn**2) for turn in range(21)]
    assert rate_after(samples) == pytest.approx(sum(turn**2 for turn in range(9, 21)) / 12)


def test_after_a_long_silence_only_what_came_since_counts() -> None:
    assert rate_after([(0.0, 100), (10.0, 100), (500.0, 7)]) == 7.0


def test_counts_are_sampled_every_five_seconds() -> None:
    meter = LinkMeter(HandClock())
    taken = []
    for turn, now in enumerate((100.0, 101.0, 104.9, 105.0, 109.9, 110.0)):
        taken.append(pulled(meter, Moved(float(turn), 100 * turn**2), now))
    assert taken == [True, False, False, True, False, True]
    assert meter.rates(FIRST).down == 100 * 5**2 / 5


def test_a_duration_is_the_median_of_the_window() -> None:
    lately = RecentSeconds()
    for seconds in (*(9.0,) * 30, *(0.5,) * 13, *(0.1,) * 11):
        lately.add(seconds)
    assert lately.median == 0.5
    lately.add(0.1)
    assert lately.median == 0.1


@pytest.mark.parametrize(
    ("moved", "rate"),
    [
        (Moved(0.0009, 3000), None),
        (Moved(0.001, 3000), 3_000_000.0),
        (Moved(0.5, 0), None),
    ],
)
def test_a_rate_needs_a_byte_and_a_millisecond(moved: Moved, rate: float | None) -> None:
    meter = LinkMeter(HandClock())
    pulled(meter, Moved(), 0.0)
    pulled(meter, moved, 10.0)
    assert meter.rates(FIRST).down == (None if rate is None else pytest.approx(rate))


def test_a_region_is_measured_while_any_of_its_learners_sends() -> None:
    clock = HandClock()
    meter = LinkMeter(clock)
    assert meter.region_rate("east") is None
    meter.push_began("east/a/0")
    clock.now += 1.0
    meter.push_began("east/a/1")
    clock.now += 1.0
    meter.push_ended("east/a/0", 100)
    clock.now += 2.0
    meter.push_ended("east/a/1", 300)
    clock.now += 10.0
    assert meter.region_rate("east") == 100.0
    assert meter.region_rate("west") is None
