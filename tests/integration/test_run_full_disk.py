"""``diloco run`` on a file system that runs full: training goes on, and files are made up for."""

import signal
from pathlib import Path

import pytest

from diloco.local.journal import read_journal
from diloco.runtime.exits import EXIT_INTERRUPTED
from tests.support.local_run import (
    WAIT_SECONDS,
    merging,
    process_named,
    started,
    starts,
    status,
    training,
    wait_until,
    write_job,
)
from tests.support.machine_limits import Filler, small_disk

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def test_a_run_whose_disk_is_full_trains_on_and_catches_up_on_files(tmp_path: Path) -> None:
    with small_disk(tmp_path, 65_536) as disk:
        job, output = write_job(tmp_path, 10_000_000), disk / "out"
        filler = Filler(disk / "filler")
        with started(job, output) as process:
            wait_until(lambda: merging(output), process)
            wait_until(lambda: filler.fill() and "No space left" in status(output).checkpoint.problem, process)
            # A learner that is killed meanwhile comes back without a file of its own.
            known = starts(output, "west/old/0")
            process_named(output, "learner", "west/old/0").kill()
            step = status(output).syncer_step
            wait_until(lambda: filler.fill() and status(output).syncer_step > step + 10, process)
            wait_until(lambda: filler.fill() and "west/old/0" in training(output), process)
            # It is told to whoever looks at the terminal, in a line every ten seconds.
            shown = status(output).elapsed_seconds
            wait_until(lambda: filler.fill() and status(output).elapsed_seconds > shown + 12, process)
            filler.path.unlink()
            wait_until(lambda: not (now := status(output)).checkpoint.problem and not now.tape_problem, process)
            wait_until(lambda: starts(output, "west/old/0") == known + 1, process)
            process.send_signal(signal.SIGINT)
            told, complaints = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == EXIT_INTERRUPTED, complaints
        assert "No space left on device" in told
        assert [entry.event for entry in read_journal(output / "supervisor.jsonl")][-1] == "end"
