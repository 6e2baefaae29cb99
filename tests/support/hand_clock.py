"""A clock that a test moves."""

from types import SimpleNamespace

import pytest


class HandClock:
    """Seconds of a monotonic clock."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time."""
        return self.now


def clock_of(module: str, monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """The clock of a module of the learner from now on; its thread computes all the time."""
    clock = HandClock()
    monkeypatch.setattr(f"diloco.learner.{module}.time", SimpleNamespace(monotonic=clock, thread_time=clock))
    return clock
