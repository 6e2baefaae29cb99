"""Random chaos on a real run for less than a minute; ``make soak`` does it for twenty."""

import json
from pathlib import Path

import pytest

from tests.soak.chaos import soak

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]


def test_a_run_stays_bounded_and_merges_on_under_random_chaos(tmp_path: Path) -> None:
    problems, resources = soak(tmp_path, seconds=45, seed=287)
    assert problems == [], f"{problems}\n{resources.table()}"
    faults = json.loads((tmp_path / "out" / "chaos.json").read_text())["faults"]
    assert {"kill", "cut", "pause"} <= {fault["kind"] for fault in faults}
    assert any("syncer" in fault["victims"] for fault in faults)
