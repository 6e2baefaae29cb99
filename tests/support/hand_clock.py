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
    """The clock of a module of the learner from now on."""
    clock = HandClock()
    monkeypatch.setattr(f"diloco.learner.{module}.time", SimpleNamespace(monotonic=clock))
    return clock
