"""asyncio in virtual time: when every task waits, the clock jumps to the next timer.

For code that waits on timers and on other tasks only; sockets are never ready here.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _NoWaiting(selectors.SelectSelector):
    """A selector that does not wait: it advances the clock by the time to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits, and no timer would wake any of them")
        self.now_seconds += max(timeout, 0.0)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _NoWaiting()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_seconds


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """As ``asyncio.run``; time begins at 0."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)
