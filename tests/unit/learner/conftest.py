"""The inner loop's clock."""

import pytest

from tests.support.hand_clock import HandClock, clock_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    return clock_of("inner_loop", monkeypatch)
