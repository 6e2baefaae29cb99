"""A region's limit, in virtual time."""

import asyncio
import random

import pytest

from diloco.wire.server.bandwidth import Limit, LoadLimit, Rate
from tests.support.virtual_time import in_virtual_time

MBIT = 1e6 / 8


@pytest.mark.parametrize("bytes_per_second", [10 * MBIT, 100 * MBIT, 1000 * MBIT])
@pytest.mark.parametrize("senders", [1, 8])
def test_a_rate_is_kept_within_five_percent_over_ten_seconds(bytes_per_second: float, senders: int) -> None:
    rate, drawn = Rate(bytes_per_second), random.Random(senders)
    part = int(max(64 << 10, min(1 << 20, bytes_per_second * 0.02)))
    free_at = [drawn.random() * 0.01 for _ in range(senders)]
    went: list[tuple[float, int]] = []
    while min(free_at) < 30.0:
        sender = free_at.index(min(free_at))
        now = free_at[sender]
        late = drawn.random() * 0.005  # a timer is
        at = now + rate.wait_seconds(part, now) + late
        went.append((at, part))
        free_at[sender] = at
    for begin in (1.0, 7.5, 19.0):
        carried = sum(size for at, size in went if begin <= at < begin + 10.0)
        assert carried == pytest.approx(10.0 * bytes_per_second, rel=0.05)


def test_what_was_not_used_for_long_is_not_made_up_for() -> None:
    rate = Rate(1000.0)
    assert rate.wait_seconds(100, 0.0) == 0.0
    assert rate.wait_seconds(100, 0.0) == pytest.approx(0.08)
    assert rate.wait_seconds(100, 60.0) == 0.0
    assert rate.wait_seconds(100, 60.0) == pytest.approx(0.08)
    assert rate.wait_seconds(100, 60.0) == pytest.approx(0.18)


def test_a_part_larger_than_the_rate_still_goes() -> None:
    rate = Rate(10.0)
    assert rate.wait_seconds(1000, 0.0) == 0.0
    assert rate.wait_seconds(1000, 50.0) == pytest.approx(50.0, abs=0.1)


def test_a_merged_fragment_goes_between_the_parts_of_loads() -> None:
    async def scene() -> list[str]:
        limit, went = Limit(1000.0, asyncio.get_running_loop().time), list[str]()
        loads = LoadLimit(limit)

        async def send(what: str, through: Limit, parts: int) -> None:
            for _ in range(parts):
                await through.down(1000)
                went.append(what)

        many = [asyncio.ensure_future(send("load", loads, 5)) for _ in range(10)]
        await asyncio.sleep(0.5)
        await send("merged", limit, 3)
        for load in many:
            load.cancel()
        await asyncio.gather(*many, return_exceptions=True)
        return went

    went = in_virtual_time(scene())
    # One part of the loads is due before each: of all fifty, not of each of the ten.
    assert went == ["load", "load", "merged", "load", "merged", "load", "merged"]


def test_loads_count_towards_the_limit_in_both_directions() -> None:
    async def scene() -> tuple[float, float]:
        now = asyncio.get_running_loop().time
        began, limit = now(), Limit(1000.0, now)
        loads = LoadLimit(limit)
        assert loads.bytes_per_second == 1000.0
        for _ in range(2):
            await loads.up(1000)
        up_at = now()
        await loads.down(1000)
        await limit.down(1000)
        return up_at - began, now() - up_at

    assert in_virtual_time(scene()) == pytest.approx((1.0, 1.0), abs=0.05)
