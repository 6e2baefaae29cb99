"""Where the report of a run on this machine is served."""

import json
from pathlib import Path

import pytest

from diloco.cli.main import execute
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_OK


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
