"""A condition variable without other threads: a wait lets the test's next event happen."""

import threading
from collections.abc import Callable
from typing import Any


class NothingToDoError(Exception):
    """A wait, although the script has no event left that could end it."""


def script(owner: Any, *names: str) -> "list[ScriptedCondition]":
    """Replace these conditions of an object, and the lock that they share; returns them."""
    owner._lock = threading.RLock()
    conditions = [ScriptedCondition(owner._lock) for _ in names]
    for name, condition in zip(names, conditions, strict=True):
        setattr(owner, name, condition)
    return conditions


class ScriptedCondition(threading.Condition):
    """Its waits end by the events of a script, in order: a call, which must notify it, or None, the end of the time."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(lock)
        self.events: list[Callable[[], object] | None] = []
        self.waits: list[float | None] = []
        """For how long, at most."""
        self.notices: list[int] = []
        """How many threads each notice is for."""
        self._woken = False

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if not self.events:
            raise NothingToDoError
        event = self.events.pop(0)
        if event is None:
            assert timeout is not None, "it would wait forever"
            return False
        self._woken = False
        event()
        assert self._woken, "nothing notified it"
        return True

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        while not (result := predicate()):
            if (timeout is not None and timeout <= 0) or not self.wait(timeout):
                return predicate()
        return result

    def notify(self, n: int = 1) -> None:
        self._woken = True
        self.notices.append(n)
        super().notify(n)
