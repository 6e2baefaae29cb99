"""A limit on the bytes of fragments that one region's learners exchange with the syncer, all together.

``Rate`` is the arithmetic of one direction: a token bucket, written as the time from which the next bytes may go.
``Limit`` waits for it. What may go is one part at a time, in the order in which they ask, so that learners share it.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

_BURST_SECONDS: Final = 0.02
"""What was not used is made up for over so long (ours): timers are late by a little."""


class Rate:
    """One direction. Pure; the clock is an argument."""

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = -math.inf

    def wait_seconds(self, size: int, now: float) -> float:
        """How long ``size`` bytes have to wait; they count from now on, whether or not they are sent."""
        begins = max(now - _BURST_SECONDS, self._free_at)
        self._free_at = begins + size / self._bytes_per_second
        return max(0.0, begins - now)


class Limit:
    """Both directions of one region. Used on the event loop."""

    def __init__(self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Each direction may carry so much."""
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._up, self._down = Rate(bytes_per_second), Rate(bytes_per_second)
        self._load = asyncio.Lock()

    async def up(self, size: int) -> None:
        """Wait until so many bytes may come from a learner."""
        await self._wait(self._up, size)

    async def down(self, size: int) -> None:
        """Wait until so many bytes may go to a learner."""
        await self._wait(self._down, size)

    async def down_for_a_load(self, size: int) -> None:
        """As ``down``, to a learner that loads the model: only one part of all loads is due at a time.

        So parts of merged fragments, which learners that train are to swap in, never wait behind many others.
        """
        async with self._load:
            await self._wait(self._down, size)

    async def _wait(self, rate: Rate, size: int) -> None:
        seconds = rate.wait_seconds(size, self._clock())
        if seconds > 0:
            await asyncio.sleep(seconds)


class LoadLimit(Limit):
    """A region's limit, for a learner that loads the model."""

    def __init__(self, limit: Limit) -> None:
        """``limit``: of the region, which is shared."""
        self.bytes_per_second = limit.bytes_per_second
        self._limit = limit

    async def up(self, size: int) -> None:
        """Wait until so many bytes may come from the learner."""
        await self._limit.up(size)

    async def down(self, size: int) -> None:
        """Wait until so many bytes may go to the learner, behind merged fragments that go to others."""
        await self._limit.down_for_a_load(size)


LimitOf = Callable[[str], Limit | None]
"""The limit of a learner's region, which all its learners share; None: there is none."""


def unlimited(_learner: str) -> None:
    """No region has a limit."""
