"""What a run leaves at its end, from what its syncer has left."""

import json
from pathlib import Path

import pytest

from diloco.local.directory import RunDirectory
from diloco.local.report.write import close_run
from diloco.runtime.journal import Entry, Journal
from diloco.spec import parse_job
from diloco.spec.status.engine import Phase
from tests.support.one_learner_run import JOB, LEARNER, START
from tests.support.status_of_a_job import STATUS, changed


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path)
    directory.syncer.mkdir()
    journal = Journal(directory.journal)
    journal.append(Entry("run", "", START), Entry("start", "syncer", START), Entry("end", "", START + 30))
    return directory


def test_the_report_has_the_last_status(run: RunDirectory) -> None:
    done = changed(STATUS, phase=Phase.COMPLETE)
    (run.syncer / "status.json").write_text(done.model_dump_json())
    history = close_run(parse_job(JOB), run)
    summary = json.loads(run.summary.read_text())
    assert (summary["complete"], summary["tokens"], summary["wall_seconds"]) == (True, 640, 30.0)
    assert "Complete after 30s" in run.report.read_text()
    assert close_run(parse_job(JOB), run) == history, "it may be repeated"
    assert not run.chaos.exists()


def test_without_a_status_there_is_a_report_that_says_so(run: RunDirectory) -> None:
    Journal(run.journal).append(Entry("start", LEARNER, START + 31), Entry("end", "", START + 40))
    history = close_run(parse_job(JOB), run)
    assert not history.complete
    assert history.former == {}, "it may be in the job"
    page = run.report.read_text()
    assert "Waiting after 40s: the syncer has left no status." in page
    assert "the figures are not known" in page
