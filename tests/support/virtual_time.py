"""An event loop in virtual time: an hour of waiting takes no time, and what threads do takes none of it."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")
Result = TypeVar("Result")

LONGEST_SECONDS = 3600.0
"""Of virtual time: a test that waits for longer waits for nothing."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its clock moves on only where nothing else is left to be done, and at once to the next moment that counts."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.in_threads = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # narrower: what this project calls
        """Time stands still until ``func`` has ended."""
        future = super().run_in_executor(executor, func, *args)
        self.in_threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self.in_threads -= 1


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if self._loop.in_threads and timeout != 0 else 0)
        if ready or timeout == 0 or self._loop.in_threads:
            return ready
        if timeout is None:
            raise RuntimeError("nothing is left that could happen")
        self._loop.now = round(self._loop.now + timeout, 9)  # the sum of whole seconds stays one
        return []


def in_virtual_time(main: Coroutine[Any, Any, Result]) -> Result:
    """Run ``main`` to its end.

    Raises:
        TimeoutError: it would wait for longer than an hour.
    """

    async def bounded() -> Result:
        async with asyncio.timeout(LONGEST_SECONDS):
            return await main

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(bounded())
