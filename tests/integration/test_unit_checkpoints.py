"""Checkpoints of a learner that is started with one number of processes after another; the processes are real."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from tests.support.small_job import write_text


def test_moments_outlive_changes_of_the_number_of_processes(tmp_path: Path) -> None:
    write_text(tmp_path)
    command = [sys.executable, "-m", "tests.support.unit_checkpoints", str(tmp_path)]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            assert process.wait(120) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    starts = json.loads((tmp_path / "result.json").read_text())
    assert [start["steps"] for start in starts] == [0, 1, 2, 3]
    assert all(before["saved"] == now["restored"] for before, now in pairwise(starts))
    assert len({start["saved"] for start in starts}) == len(starts)
