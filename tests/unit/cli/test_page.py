"""Where the report of a run on this machine is served."""

import fcntl
import json
from pathlib import Path

import pytest

from diloco.cli.jobs.page import _route
from diloco.cli.live.cluster_jobs import Jobs, SeenJob, SyncerUnseenError
from diloco.cli.main import execute
from diloco.local.directory import RunDirectory
from diloco.local.report.html import SCRIPT
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_OK
from diloco.spec.status.job import JobStatus


def test_the_address_of_a_runs_page_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "syncer").mkdir()
    (tmp_path / "syncer" / "endpoint.json").write_text(json.dumps({"http": "127.0.0.1:8080"}))
    for what in (str(tmp_path), "127.0.0.1:8080", "http://127.0.0.1:8080"):
        assert execute(["page", what]) == EXIT_OK
        assert capsys.readouterr().out == "http://127.0.0.1:8080/page\n"


def test_a_run_without_a_syncer_is_told_where_its_report_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["page", str(tmp_path)]) == EXIT_BAD_INPUT
    assert "a run that is over has its report in report.html" in capsys.readouterr().err
    assert execute(["page", "nowhere"]) == EXIT_BAD_INPUT


def test_the_address_that_a_killed_run_has_left_is_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path)
    run.syncer.mkdir()
    (run.syncer / "endpoint.json").write_text(json.dumps({"http": "127.0.0.1:8080"}))
    with run.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert execute(["page", str(tmp_path)]) == EXIT_OK
    capsys.readouterr()
    assert execute(["page", str(tmp_path)]) == EXIT_BAD_INPUT
    assert "no syncer serves here" in capsys.readouterr().err


class OneJob(Jobs):
    """A job whose syncer answers with ``body``; empty: it is not there."""

    def __init__(self, body: str) -> None:
        self.phase, self.body = "Training", body

    def one(self, namespace: str, name: str) -> SeenJob:
        return SeenJob(namespace, name, JobStatus.model_construct(phase=self.phase))

    def page(self, job: SeenJob) -> bytes:  # noqa: ARG002  # the base class's
        if not self.body:
            raise SyncerUnseenError("its syncer is not running", lasting=False)
        return self.body.encode()


OWN = f"<main>curves</main><script>{SCRIPT}</script>"


@pytest.mark.parametrize(
    ("body", "status", "refreshed"),
    [(OWN, 200, False), ("<main></main><script>another</script>", 200, True), ("", 503, True)],
)
def test_a_page_without_a_script_that_may_run_is_asked_for_again(body: str, status: int, *, refreshed: bool) -> None:
    answer = _route(OneJob(body), "ml", "small")()
    assert (answer.status, "Refresh" in dict(answer.headers)) == (status, refreshed)


def test_the_last_page_of_a_job_in_a_cluster_stays_and_says_so() -> None:
    jobs = OneJob(OWN)
    route = _route(jobs, "ml", "small")
    assert route().body == OWN.encode()
    jobs.phase, jobs.body = "Complete", ""
    told = '<main data-over><p class="verdict">The job is over (Complete).</p>'
    assert route().body.decode() == OWN.replace("<main>", told)
    assert told in _route(jobs, "ml", "small")().body.decode()
    assert "Refresh" not in dict(_route(jobs, "ml", "small")().headers)
