"""``diloco run`` goes on without readers, journal and logs, restarts what others stop, and reacts to signals."""

import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import grpc
import pytest

from diloco.local.journal import read_journal
from diloco.wire.convert import pack_learner
from diloco.wire.messages import Join
from tests.support.local_run import (
    WAIT_SECONDS,
    merging,
    process_named,
    processes_of,
    started,
    starts,
    wait_until,
    write_job,
)
from tests.support.raw_wire import RawClient, ending

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def test_a_run_succeeds_without_readable_output_journal_or_logs(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 30_000), tmp_path / "out"
    journal, kept = output / "supervisor.jsonl", tmp_path / "kept"
    with started(job, output) as process:
        wait_until(lambda: merging(output), process)
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        journal.rename(kept)
        journal.symlink_to("/dev/full")
        shutil.rmtree(output / "logs")
        process_named(output, "learner", "west/old/0").kill()
        process_named(output, "syncer").terminate()
        wait_until((output / "logs" / "syncer.log").exists, process)
        wait_until((output / "logs" / "west.old.0.log").exists, process)
        journal.unlink()
        kept.rename(journal)
        _, complaints = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, complaints
    (complaint,) = complaints.splitlines()
    assert complaint.startswith("diloco: cannot write output (broken pipe); the run continues, ")
    assert json.loads((output / "summary.json").read_text())["complete"]
    events = [(entry.event, entry.process) for entry in read_journal(journal)]
    assert events.count(("start", "syncer")) == 2
    assert events.count(("start", "west/old/0")) == 2


def test_a_finished_run_stops_a_learner_that_cannot_hear_of_it(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 30_000), tmp_path / "out"
    patient = "from diloco.local import supervisor; supervisor._LEARNERS_END_SECONDS = 1e6"
    program = (sys.executable, "-c", f"{patient}; from diloco.cli.main import main; main()")
    with started(job, output, "--chaos", "cut:west@step=6,seconds=100000", program=program) as process:
        told, complaints = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, told + complaints
    ends = {entry.process: entry for entry in read_journal(output / "supervisor.jsonl") if entry.event == "exit"}
    assert ends["west/old/0"].details["reason"] == "the run is over"
    assert json.loads((output / "summary.json").read_text())["complete"]


def test_a_reader_that_stops_reading_does_not_stop_the_run(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 10_000_000), tmp_path / "out"
    with started(job, output) as process:
        wait_until(lambda: merging(output), process)
        fill(f"/proc/{process.pid}/fd/1")
        process_named(output, "learner", "west/old/0").kill()
        wait_until(lambda: starts(output, "west/old/0") == 2, process)
        process_named(output, "learner", "west/old/0").kill()
        wait_until(lambda: starts(output, "west/old/0") == 3, process)
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_SECONDS)
        _, complaints = process.communicate()
    assert "diloco: cannot write output (its reader has stopped reading); the run continues, " in complaints


def fill(pipe: str) -> None:
    """Write into a pipe until it is full."""
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"." * 512):
            pass
    os.close(writer)


def test_a_syncer_that_lost_its_directory_is_not_begun_anew(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 10_000_000), tmp_path / "out"
    with started(job, output) as process:
        wait_until(lambda: merging(output), process)
        syncer = process_named(output, "syncer")
        syncer.suspend()  # else it would write another checkpoint, and the folder with it
        shutil.rmtree(output / "syncer")
        syncer.kill()
        _, complaints = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1
    (complaint,) = complaints.splitlines()
    assert f"{output / 'syncer'} no longer has a checkpoint: it was removed" in complaint
    assert processes_of(output) == []


def test_nobody_without_a_certificate_of_the_run_gets_a_word_in(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 10_000_000), tmp_path / "out"
    with started(job, output) as process:
        wait_until(lambda: merging(output), process)
        address = json.loads((output / "syncer" / "endpoint.json").read_text())["sync"]
        with RawClient(address) as stranger:
            joins = pack_learner(Join("small", "west/old/0", "stranger", "layout"))
            assert ending(stranger.session([joins]))[0] is grpc.StatusCode.UNAVAILABLE
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_SECONDS)
    log = (output / "logs" / "syncer.log").read_text()
    assert log.count("Admit west/old/0") == 1
    assert "stranger" not in log
