"""A learner's connections to one target with one set of certificates.

A transfer has a call on each of several connections. On an event loop these are coroutines; in threads they would be
two threads each, for every pull that waits at the syncer.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

import grpc

from diloco.wire.client.route import Target

_ANSWERS: Final = 32
"""Answers that count, so that a link that has become longer is noticed (ours)."""


class Lanes:
    """Connections by the numbers of their channels, opened when first used. Used on one event loop."""

    def __init__(self, open_lane: Callable[[int], grpc.aio.Channel], target: Target) -> None:
        self._open_lane = open_lane
        self.target = target
        self.users = 0
        """Sessions and transfers that use them."""
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._answers: deque[float] = deque(maxlen=_ANSWERS)
        self.serving: Counter[int] = Counter()
        """By connection: calls of all transfers that were answered and go on."""
        self._endings: set[asyncio.Task[None]] = set()

    def after(self, ending: Coroutine[Any, Any, None]) -> None:
        """Do what is left to do on a connection after a transfer, which has its result already."""
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def answered(self, seconds: float) -> None:
        """Note how long the first answer to a call took: a round trip, and whatever kept both sides."""
        self._answers.append(seconds)

    @property
    def answer_seconds(self) -> float:
        """The least of the latest; infinite before the first."""
        return min(self._answers, default=math.inf)

    def channel(self, number: int) -> grpc.aio.Channel:
        """Connection ``number``."""
        if number not in self._channels:
            self._channels[number] = self._open_lane(number)
        return self._channels[number]

    def leave(self, number: int) -> None:
        """Close connection ``number``, as it is silent: its calls go on over a new one. Not while it serves others."""
        if not self.serving[number] and (channel := self._channels.pop(number, None)) is not None:
            self.after(channel.close())

    async def close(self) -> None:
        """Break off all calls, and close the connections."""
        endings = list(self._endings)
        for ending in endings:
            ending.cancel()
        await asyncio.gather(*endings, return_exceptions=True)
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()
