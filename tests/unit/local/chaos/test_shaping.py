import math

import pytest

from diloco.local.chaos.shaping import LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES, Pipe, Shape
from tests.support.hand_clock import HandClock


def test_what_is_sent_takes_turns_at_the_rate() -> None:
    clock = HandClock()
    pipe = Pipe(1000.0, clock)
    assert [pipe.reserve(500), pipe.reserve(250)] == [100.5, 100.75]
    assert Pipe(math.inf, clock).reserve(10**9) == clock.now


def test_an_idle_link_saves_nothing_up() -> None:
    clock = HandClock()
    pipe = Pipe(1000.0, clock)
    pipe.reserve(500)
    clock.now = 200.0
    assert pipe.reserve(500) == 200.5


@pytest.mark.parametrize(
    ("rates", "chunk_bytes"),
    [((), MOST_CHUNK_BYTES), ((1e12,), MOST_CHUNK_BYTES), ((1e6, 5e5), 5000), ((10.0,), LEAST_CHUNK_BYTES)],
)
def test_a_chunk_is_what_the_slowest_part_carries_in_a_turn(rates: tuple[float, ...], chunk_bytes: int) -> None:
    assert Shape(tuple(Pipe(rate, HandClock()) for rate in rates)).chunk_bytes == chunk_bytes


def test_a_far_link_holds_what_its_delay_and_rate_allow() -> None:
    shape = Shape((Pipe(1e6, HandClock()),), delay_seconds=0.1)
    assert shape.delayed_chunks == 1 + 10
    assert Shape().delayed_chunks == 1
    assert Shape(delay_seconds=0.1).delayed_chunks * MOST_CHUNK_BYTES < 2e8


def test_who_wakes_late_from_its_turn_loses_no_rate() -> None:
    clock = HandClock()
    pipe = Pipe(1000.0, clock)
    pipe.reserve(500)
    clock.now = 100.503
    assert pipe.reserve(500) == 101.0
