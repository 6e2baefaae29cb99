"""A real syncer process until it serves: what keeps it from starting, and its pages in the meantime."""

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from diloco.local.status_poll import StatusError, fetch_status
from diloco.runtime.exits import EXIT_BAD_INPUT, EXIT_OK
from tests.support.syncer_process import SmallJob, SyncerProcess

pytestmark = pytest.mark.processes


def one_line_of(syncer: SyncerProcess) -> str:
    """The one line that a syncer that does not start prints."""
    assert syncer.exit_code() == EXIT_BAD_INPUT, syncer.log
    (line,) = syncer.log.strip().splitlines()
    return line


def test_a_busy_port_is_one_line(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with SyncerProcess(job, tmp_path / "s", "--listen", address) as syncer:
            assert address in one_line_of(syncer)
        with SyncerProcess(job, tmp_path / "t", "--http", address) as syncer:
            assert f"cannot serve HTTP at {address}" in one_line_of(syncer)


def test_a_directory_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, job.path) as syncer:
        assert f"{job.path}: is a file; use a directory" in one_line_of(syncer)
    with SyncerProcess(job, Path("/proc/nowhere")) as syncer:
        assert "/proc/nowhere: cannot be written to" in one_line_of(syncer)


def test_a_checkpoint_of_another_model_or_job_is_one_line_that_names_both(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
    other_model = SmallJob(tmp_path, preset="nano")
    with SyncerProcess(other_model, tmp_path / "s") as syncer:
        line = one_line_of(syncer)
        assert f"{job.layout.numel} parameters in 4 fragments" in line
        assert f"{other_model.layout.numel} parameters in 4 fragments" in line
    other_job = SmallJob(tmp_path, name="another")
    with SyncerProcess(other_job, tmp_path / "s") as syncer:
        assert "the checkpoint is of job 'small', not of 'another'" in one_line_of(syncer)


def page(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_second_syncer_waits_for_the_first_one_and_goes_on(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, tmp_path / "s") as first:
        first.serving()
        with socket.create_server(("127.0.0.1", 0)) as free:
            http = f"127.0.0.1:{free.getsockname()[1]}"
        with SyncerProcess(job, tmp_path / "s", "--http", http) as second:
            second.wait_for("another syncer is using this directory; waiting for it to end")
            assert "serving job" not in second.log
            assert page(http, "/healthz")[0] == 200
            waits = "not serving yet: waiting for another syncer that uses the directory\n"
            assert page(http, "/readyz") == page(http, "/status") == (503, waits)
            with pytest.raises(StatusError, match="waiting for another syncer"):
                fetch_status(http)
            assert first.terminate() == EXIT_OK
            second.serving()
            assert "continues from checkpoint" in second.log
            assert page(http, "/readyz") == (200, "serving\n")
            assert fetch_status(http).job == job.name
