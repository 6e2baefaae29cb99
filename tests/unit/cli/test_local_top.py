"""Watching a run on this machine: from its syncer while it goes on, from its summary once it is over."""

import io
import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from diloco.cli.frames import LocalSource
from diloco.cli.main import execute
from diloco.cli.top import NewLines, follow
from diloco.runtime.exits import EXIT_JOB_FAILED, EXIT_OK
from tests.support.seen_jobs import syncer_account
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


SUMMARY = {"job": "small", "complete": True, "phase": "Complete", "tokens": 10, "learners": [], "eval_loss": 1.5}


def test_a_run_is_watched_until_its_summary_is_there(tmp_path: Path) -> None:
    (tmp_path / "syncer").mkdir()
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    assert isinstance(console.file, io.StringIO)
    lines = console.file
    with ExitStack() as while_it_runs:
        port = while_it_runs.enter_context(status_page(syncer_account()))
        (tmp_path / "syncer" / "endpoint.json").write_text(json.dumps({"http": f"127.0.0.1:{port}"}))

        def go_on() -> None:
            while_it_runs.close()  # the syncer ends...
            if "retrying" in lines.getvalue():
                (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))  # ...and then the run

        assert follow(LocalSource(str(tmp_path)), NewLines(console), rows=None, once=False, wait=go_on) == EXIT_OK
    first, remark, *summary = lines.getvalue().splitlines()
    assert first.startswith(" 25%")
    assert remark.endswith("; retrying")
    assert json.loads("".join(summary)) == SUMMARY
