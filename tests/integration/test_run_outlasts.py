"""``diloco run`` goes on without readers, journal and logs, restarts what others stop, and reacts to signals."""

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from diloco.runtime.journal import read_journal
from tests.support.local_run import GENTLE, WAIT_SECONDS, LocalRun, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def test_a_run_succeeds_without_readable_output_journal_or_logs(tmp_path: Path) -> None:
    with LocalRun(write_job(tmp_path, 30_000)) as run:
        journal, kept, logs = run.output / "supervisor.jsonl", tmp_path / "kept", run.output / "logs"
        run.wait_until(run.merging)
        assert run.process.stdout is not None
        run.process.stdout.close()
        run.process.stdout = None
        journal.rename(kept)
        journal.symlink_to("/dev/full")
        shutil.rmtree(logs)
        run.learner("west/old/0").kill()
        run.syncer().terminate()
        run.wait_until((logs / "syncer.log").exists)
        run.wait_until((logs / "west.old.0.log").exists)
        journal.unlink()
        kept.rename(journal)
        ended = run.ended()
    assert ended.returncode == 0, ended.stderr
    (complaint,) = ended.stderr.splitlines()
    assert complaint.startswith("diloco: cannot write output (broken pipe); the run continues, ")
    assert run.summary()
    assert (run.starts("syncer"), run.starts("west/old/0")) == (2, 2)


def test_a_finished_run_stops_a_learner_that_cannot_hear_of_it(tmp_path: Path) -> None:
    patient = "from diloco.local import supervisor; supervisor._LEARNERS_END_SECONDS = 1e6"
    program = (sys.executable, "-c", f"{patient}; from diloco.cli.main import main; main()")
    chaos = ("--chaos", "cut:west@step=6,seconds=100000")
    with LocalRun(write_job(tmp_path, 30_000), *chaos, program=program) as run:
        ended = run.ended()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ends = {entry.process: entry for entry in read_journal(run.output / "supervisor.jsonl") if entry.event == "exit"}
    assert ends["west/old/0"].details["reason"] == "the run is over"
    assert run.summary()


def test_a_reader_that_stops_reading_does_not_stop_the_run(tmp_path: Path) -> None:
    with LocalRun(write_job(tmp_path), *GENTLE) as run:
        run.wait_until(run.merging)
        fill(f"/proc/{run.process.pid}/fd/1")
        for starts in (2, 3):
            run.learner("west/old/0").kill()
            run.wait_until(lambda starts=starts: run.starts("west/old/0") == starts)  # type: ignore[misc]
        run.process.send_signal(signal.SIGINT)
        run.process.wait(WAIT_SECONDS)
        complaints = run.ended().stderr
    assert "diloco: cannot write output (its reader has stopped reading); the run continues, " in complaints


def fill(pipe: str) -> None:
    """Write into a pipe until it is full."""
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"." * 512):
            pass
    os.close(writer)


def test_a_syncer_that_lost_its_directory_is_not_begun_anew(tmp_path: Path) -> None:
    with LocalRun(write_job(tmp_path)) as run:
        run.wait_until(run.merging)
        syncer = run.syncer()
        syncer.suspend()  # else it would write another checkpoint, and the folder with it
        shutil.rmtree(run.output / "syncer")
        syncer.kill()
        ended = run.ended()
    assert ended.returncode == 1
    (complaint,) = ended.stderr.splitlines()
    assert f"{run.output / 'syncer'} no longer has a checkpoint: it was removed" in complaint
    assert run.processes() == []
