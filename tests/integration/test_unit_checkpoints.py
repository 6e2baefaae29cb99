"""A learner that is started with one number of processes after another; the processes are real."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.units import write_documents


class Run:
    """What came of it."""

    def __init__(self, folder: Path) -> None:
        write_documents(folder / "text")
        command = [sys.executable, "-m", "tests.support.unit_checkpoints", str(folder)]
        with subprocess.Popen(command, start_new_session=True) as process:
            try:
                self.code = process.wait(120)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        self.starts = json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("unit"))


def test_moments_outlive_changes_of_the_number_of_processes(run: Run) -> None:
    assert [start["steps"] for start in run.starts] == [0, 1, 2, 3, 4]
    assert all(before["saved"] == now["restored"] for before, now in pairwise(run.starts))
    assert len({start["saved"] for start in run.starts}) == len(run.starts)


def test_three_processes_with_uneven_parts_train_as_one(run: Run) -> None:
    assert run.code == 0
