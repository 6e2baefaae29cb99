"""Event loops for code that talks TLS: they end when every connection is closed.

A request that is cancelled closes its connection, and TLS closes in two steps, the second of which needs the loop. A
loop that ends before it leaves an open socket, which fails whichever test runs when it is collected.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS: Final = 90.0
_OWN: Final = 1
"""A loop has one file of its own to be woken by."""
_MOST_SECONDS: Final = 40.0
"""asyncio aborts a TLS connection whose peer does not close it after 30."""


@contextmanager
def closed_loop() -> Iterator[asyncio.Runner]:
    """Runs coroutines in one loop, whose connections are closed at the end."""
    selector = selectors.DefaultSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        try:
            yield runner
        finally:
            runner.run(_closed(selector))


def entered(runner: asyncio.Runner, manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """For a fixture: what an asynchronous context manager gives, for tests in this loop."""
    yield runner.run(manager.__aenter__())
    runner.run(manager.__aexit__(None, None, None))


async def until(holds: Callable[[], object]) -> None:
    """Wait for a value of the code under test, or of a thread: nothing tells of it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 # see above
            await asyncio.sleep(0.02)


async def _closed(selector: selectors.BaseSelector) -> None:
    deadline = time.monotonic() + _MOST_SECONDS
    while len(selector.get_map()) > _OWN and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
