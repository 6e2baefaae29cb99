"""Watching a run on this machine: from its syncer while it goes on, from its summary once it is over."""

import io
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from diloco.cli.jobs.top import NewLines, follow
from diloco.cli.live.frames import LocalSource
from diloco.cli.main import execute
from diloco.core.fragments import TensorSpec, partition
from diloco.local.directory import DirectoryClaim, begin
from diloco.local.report.summary import summarize
from diloco.runtime.journal import Entry
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_JOB_FAILED, EXIT_OK
from diloco.spec import parse_job
from tests.support.one_learner_run import JOB, LEARNER, START, OneLearner, history_of
from tests.support.seen_jobs import syncer_account
from tests.support.status_of_a_job import STATUS, changed
from tests.support.status_page import status_page


def test_a_syncer_is_shown_once_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    with status_page(syncer_account()) as port:
        assert execute(["top", f"127.0.0.1:{port}", "--once"]) == EXIT_OK
        assert "us-west/old/0  training" in capsys.readouterr().out
        assert execute(["top", f"http://127.0.0.1:{port}", "--once", "--json"]) == EXIT_OK
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["syncer_step"] == 7


def test_a_syncer_whose_job_failed_ends_the_watching(capsys: pytest.CaptureFixture[str]) -> None:
    with status_page(syncer_account(phase="Failed")) as port:
        assert execute(["top", f"127.0.0.1:{port}"]) == EXIT_JOB_FAILED
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.fixture
def summary() -> dict[str, Any]:
    """Of a run with one learner, which is over."""
    tensors = [TensorSpec(name, (4,), embedding=False) for name in "ab"]
    job, layout = parse_job(JOB.replace("learners: 2", "learners: 1")), partition(tensors, 2)
    run = OneLearner(job, layout)
    run.train(12)
    journal = [
        Entry("run", "", START, {"processes": {LEARNER: 4}}),
        Entry("end", "", START + 30, {"ending": "finished"}),
    ]
    return summarize(history_of(job, layout, run, journal))


def test_a_run_that_is_over_has_the_view_of_one_that_goes_on(
    tmp_path: Path, summary: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert execute(["status", str(tmp_path)]) == EXIT_OK
    head, *rest = capsys.readouterr().out.splitlines()
    assert head.startswith("small  syncer complete  step ")
    (learner,) = (line.split() for line in rest if line.startswith(LEARNER))
    assert learner[1:4] == ["ended", "4", "12"]
    assert execute(["status", str(tmp_path), "--json"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out) == summary
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "phase": "Failed"}))
    assert execute(["top", str(tmp_path)]) == EXIT_JOB_FAILED


def test_a_run_that_was_stopped_says_how_far_it_came_and_how_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begin(tmp_path / "run", JOB, overwrite=False)
    left = changed(STATUS, merged_tokens=0.25 * parse_job(JOB).spec.training.tokens, eval_loss=2.5)
    (run.syncer / "status.json").write_text(left.model_dump_json())
    assert execute(["status", str(run.root)]) == EXIT_OK
    told = capsys.readouterr().out
    assert "job small was stopped at 25% of its tokens, evaluated loss 2.500; to continue, run: diloco run " in told
    assert told.endswith(f"diloco run {run.job} --output {run.root} --resume\n")
    assert execute(["top", str(run.root)]) == EXIT_OK
    claim = DirectoryClaim(run)
    assert execute(["status", str(run.root)]) == EXIT_BAD_INPUT
    assert "its syncer does not serve yet" in capsys.readouterr().err
    said = io.StringIO()
    writer = NewLines(Console(file=said, width=80, force_terminal=False))
    assert follow(LocalSource(str(run.root)), writer, rows=None, once=False, wait=claim.release) == EXIT_OK
    waits, stopped = said.getvalue().splitlines()
    assert waits.endswith("its syncer does not serve yet; retrying")
    assert "was stopped at 25%" in stopped


def test_a_run_is_watched_until_its_summary_is_there(tmp_path: Path, summary: dict[str, Any]) -> None:
    (tmp_path / "syncer").mkdir()
    lines = io.StringIO()
    console = Console(file=lines, width=80, force_terminal=False)
    with ExitStack() as while_it_runs:
        port = while_it_runs.enter_context(status_page(syncer_account()))
        (tmp_path / "syncer" / "endpoint.json").write_text(json.dumps({"http": f"127.0.0.1:{port}"}))

        def go_on() -> None:
            while_it_runs.close()  # the syncer ends...
            if "retrying" in lines.getvalue():
                (tmp_path / "summary.json").write_text(json.dumps(summary))  # ...and then the run

        assert follow(LocalSource(str(tmp_path)), NewLines(console), rows=None, once=False, wait=go_on) == EXIT_OK
    first, remark, last = lines.getvalue().splitlines()
    assert first.startswith(" 25%")
    assert remark.endswith("; retrying")
    assert last.startswith("100%")
