"""Log lines about unauthenticated peers."""

import logging

import pytest

from diloco.wire.sparse_log import SparseLog
from tests.support.hand_clock import HandClock


def test_a_flood_of_lines_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    lines = SparseLog(logging.getLogger("x"), clock)
    for _ in range(1000):
        lines.log(logging.WARNING, "call %d ended", 1)
    assert len(caplog.records) == 200
    clock.now += 61.0
    lines.log(logging.WARNING, "call %d ended", 2)
    assert [record.getMessage() for record in caplog.records[200:]] == [
        "800 more calls ended in the last 61 s",
        "call 2 ended",
    ]
