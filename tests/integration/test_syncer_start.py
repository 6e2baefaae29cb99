"""A real syncer process until it serves: what keeps it from starting, and its pages in the meantime."""

import socket
from pathlib import Path

import pytest

from diloco.local.status_poll import StatusError, fetch_status
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_OK
from tests.support.http_pages import page
from tests.support.syncer_process import SmallJob, SyncerProcess, serving

pytestmark = pytest.mark.processes


def one_line_of(syncer: SyncerProcess) -> str:
    """The one line that a syncer that does not start prints."""
    assert syncer.exit_code() == EXIT_BAD_INPUT, syncer.log
    (line,) = syncer.log.strip().splitlines()
    return line


def test_a_directory_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, job.path) as syncer:
        assert f"{job.path}: is a file; use a directory" in one_line_of(syncer)
    with SyncerProcess(job, Path("/proc/nowhere")) as syncer:
        assert "/proc/nowhere: cannot be written to" in one_line_of(syncer)


def test_a_second_syncer_waits_for_the_first_one_and_goes_on(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with serving(job, tmp_path / "s") as first:
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
