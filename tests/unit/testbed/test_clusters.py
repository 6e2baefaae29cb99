"""Clusters whose nodes were stopped with the engine are made anew."""

import pytest

from testbed.kind.clusters import started_again

MADE = "2026-11-29T16:03:11.123456789Z"


@pytest.mark.parametrize(("started", "again"), [("16:03:12.5Z", False), ("16:04:40Z", False), ("17:24:31.1Z", True)])
def test_a_container_that_runs_again_is_told_by_its_times(started: str, again: bool) -> None:
    assert started_again(MADE, f"2026-11-29T{started}") == again
