"""``asyncio.run`` for code that talks TLS: it returns when every connection is closed.

A request that is cancelled closes its connection, and TLS closes in two steps, the second of which needs the loop. A
loop that ends before it leaves an open socket, which fails whichever test runs when it is collected.
"""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

_OWN: Final = 1
"""A loop has one file of its own to be woken by."""
_MOST_SECONDS: Final = 40.0
"""asyncio aborts a TLS connection whose peer does not close it after 30."""


def run_until_closed(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` in a loop of its own, and wait for its connections to close."""
    selector = selectors.DefaultSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        try:
            return runner.run(main)
        finally:
            runner.run(_closed(selector))


async def _closed(selector: selectors.BaseSelector) -> None:
    deadline = time.monotonic() + _MOST_SECONDS
    while len(selector.get_map()) > _OWN and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
