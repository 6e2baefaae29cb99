"""An event loop in virtual time: it goes on to the next timer when nothing else is left to do."""

import asyncio
import contextlib
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NothingToDoError(Exception):
    """No task can go on by itself."""


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events and timeout is None:
            raise _NothingToDoError
        if not events and timeout is not None:
            self.now += timeout
        return events


class HandLoop(asyncio.SelectorEventLoop):
    """Run by a test, in its thread."""

    def __init__(self) -> None:
        self.selector = _Selector()
        super().__init__(self.selector)
        self.set_exception_handler(lambda *_: None)  # of tasks that a test leaves unfinished

    def time(self) -> float:
        return self.selector.now

    def work(self, seconds: float | None = None) -> None:
        """Run until nothing is left to do, or for so many seconds of its time."""
        if seconds is not None:
            self.call_later(seconds, self.stop)
        with contextlib.suppress(_NothingToDoError):
            self.run_forever()

    def result_of(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run until nothing is left to do; None: ``work`` still waits then."""
        task = self.create_task(work)
        self.work()
        return task.result() if task.done() else None

    def __del__(self) -> None:
        self.close()
