"""The report of a session is written and printed, whatever ends the session or keeps a file from being written."""

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console

from diloco.cli.chaos.run import SessionOptions, run_session
from diloco.local.chaos.spec import ChaosError, Fault, FaultKind
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from diloco.spec.status.syncer import SyncerStatus
from tests.support.scripted_place import VICTIM, ScriptedPlace
from tests.support.status_of_a_job import STATUS

KILL = Fault(FaultKind.KILL, VICTIM, (VICTIM,))


def run(place: ScriptedPlace, *files: Path, seconds: float = 100.0) -> str:
    """Run a session with one kill; what it printed is in the error's ``printed``, or returned."""
    printed = io.StringIO()
    try:
        run_session(
            place, "small", (VICTIM,), [KILL], SessionOptions(seconds, 0.0, 7, files), Console(file=printed, width=200)
        )
    except (ChaosError, typer.Exit, AssertionError) as error:
        error.add_note(printed.getvalue())
        raise
    return printed.getvalue()


def victims(file: Path) -> list[list[str]]:
    return [fault["victims"] for fault in json.loads(file.read_text(encoding="utf-8"))["faults"]]


def test_a_place_that_goes_leaves_a_report_and_one_line(tmp_path: Path) -> None:
    place = ScriptedPlace(lambda _: STATUS, gone_after=1)
    with pytest.raises(ChaosError) as raised:
        run(place, tmp_path / "chaos.json")
    assert str(raised.value) == "the session ended early: the place is gone"
    assert victims(tmp_path / "chaos.json") == [[VICTIM]]
    (printed,) = raised.value.__notes__
    assert "0 of 1 seen" in printed


def test_a_bug_leaves_a_report_and_its_traceback(tmp_path: Path) -> None:
    def then(asked: int) -> SyncerStatus:
        assert not asked, "a bug"
        return STATUS

    with pytest.raises(AssertionError, match="a bug"):
        run(ScriptedPlace(then), tmp_path / "chaos.json")
    assert victims(tmp_path / "chaos.json") == [[VICTIM]]


def test_an_interrupt_leaves_a_report(tmp_path: Path) -> None:
    with pytest.raises(typer.Exit) as raised:
        run(ScriptedPlace(lambda _: STATUS, interrupts=True), tmp_path / "chaos.json")
    assert raised.value.exit_code == EXIT_INTERRUPTED
    assert victims(tmp_path / "chaos.json") == [[VICTIM]]


def test_a_file_that_cannot_be_written_costs_only_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, there = tmp_path / "gone" / "chaos.json", tmp_path / "chaos.json"
    with pytest.raises(typer.Exit) as raised:
        run(ScriptedPlace(lambda _: STATUS), missing, there, seconds=0.3)
    assert raised.value.exit_code == EXIT_BAD_INPUT
    assert capsys.readouterr().err == (f"diloco: {missing}: the report cannot be written (No such file or directory)\n")
    assert victims(there) == [[VICTIM]]
    (printed,) = raised.value.__notes__
    assert "0 of 1 seen" in printed
