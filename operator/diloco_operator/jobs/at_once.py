"""Several requests of one job at once, so that a job of many pools does not wait for each answer in turn."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

AT_ONCE: Final = 8
"""Requests of one job that are under way at once (ours). A server queues or refuses what one user sends beyond a number
of seats (API priority and fairness), and twelve jobs are reconciled at once."""
Item = TypeVar("Item")
Result = TypeVar("Result")


async def each(act: Callable[[Item], Awaitable[Result]], items: Collection[Item]) -> list[Result]:
    """The results of ``act`` for all items, in their order; at most `AT_ONCE` run at once, and they begin in order.

    Raises:
        Exception: the first that ``act`` raises. None begins after it, and those under way are cancelled.
    """
    found: dict[int, Result] = {}
    left = iter(enumerate(items))

    async def work() -> None:
        for number, item in left:
            found[number] = await act(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(items))):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [found[number] for number in range(len(items))]
