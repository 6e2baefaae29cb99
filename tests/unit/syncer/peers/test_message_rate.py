"""How fast a session is read."""

import pytest

from diloco.syncer.peers.message_rate import TokenBucket
from tests.support.hand_clock import HandClock


def test_2000_messages_at_once_pass_and_more_are_read_at_1000_a_second() -> None:
    clock = HandClock()
    bucket = TokenBucket(clock)
    clock.now += 3600.0  # silence earns no more
    assert not any(bucket.wait_seconds() for _ in range(2000))
    began = clock.now
    for _ in range(10_000):
        clock.now += bucket.wait_seconds()
    assert clock.now - began == pytest.approx(10.0)


def test_whoever_is_slower_never_waits() -> None:
    clock = HandClock()
    bucket = TokenBucket(clock)
    for _ in range(20_000):
        clock.now += 0.001
        assert bucket.wait_seconds() == 0.0
