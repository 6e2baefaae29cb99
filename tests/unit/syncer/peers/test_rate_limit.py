"""How fast a session is read."""

from diloco.syncer.peers.rate_limit import A_SECOND, AT_ONCE, TokenBucket
from tests.support.hand_clock import HandClock


def test_a_burst_passes_and_a_flood_is_read_at_the_rate() -> None:
    clock = HandClock()
    bucket = TokenBucket(clock)
    assert not any(bucket.wait_seconds() for _ in range(int(AT_ONCE)))
    began = clock.now
    for _ in range(10_000):
        clock.now += bucket.wait_seconds()
    assert 0.99 * A_SECOND <= 10_000 / (clock.now - began) <= 1.01 * A_SECOND


def test_whoever_is_slower_never_waits() -> None:
    clock = HandClock()
    bucket = TokenBucket(clock)
    for _ in range(20_000):
        clock.now += 1.0 / A_SECOND
        assert bucket.wait_seconds() == 0.0
