"""``diloco plan``: its output, its exit codes, and its errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from diloco.cli.main import execute
from diloco.runtime.exits import EXIT_DOES_NOT_FIT, EXIT_OK

JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: planned}
spec:
  model: {builtin: {preset: nano}}
  data: {text: {}}
  training: {tokens: 1_000_000}
  regions:
  - {name: east, pools: [{name: new, learners: 2}]}
  - {name: west, pools: [{name: old, learners: 2}]}
"""


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal, as lines break elsewhere in a narrow one."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


def test_a_job_that_fits_exits_with_0(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", job, "--link", "*=100Mbit/s,80ms", "--step", "*=0.5"]) == EXIT_OK
    told = capsys.readouterr().out
    assert told.startswith("planned  fits\n")
    assert "  Outer optimizer: learning rate 1, momentum 0 (Auto: expected merges of each fragment: 5, fewer" in told
    assert "820 k parameters in 24 fragments, one every 1 step(s)" in told
    assert "100 Mbit/s" in told
    assert "the syncer's own link is unlimited (--link syncer=RATE)" in told
    assert "these links carry it" in " ".join(told.split())


def test_one_that_does_not_exits_with_5_and_says_what_would_do(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", job, "--link", "west=2Mbit/s", "--step", "*=0.5"]) == EXIT_DOES_NOT_FIT == 5
    told = capsys.readouterr().out
    assert told.startswith("planned  does not fit: LinkTooThin\n")
    assert "not carried" in told
    assert "Remedies, each enough alone:" in told
    assert "sync.interval: " in told
    assert "Mbit/s on the link west" in told
    assert "Data-parallel would move 2.46 MB a step each way" in told


def test_without_step_times_it_exits_with_5_and_tells_the_shortest(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["plan", job, "--link", "*=2Mbit/s,20ms"]) == EXIT_DOES_NOT_FIT
    told = capsys.readouterr().out
    assert told.startswith("planned  needs step times (--step)\n")
    assert "It fits with inner steps of " in told
    assert "LinkTooThin" in told
    assert "Fits" in told


def test_programs_get_json_and_the_same_exit_codes(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", job, "--link", "*=100Mbit/s", "--step", "*=500ms", "--json"]) == EXIT_OK
    assert json.loads(capsys.readouterr().out)["fits"] is True
    assert execute(["plan", job, "--link", "*=1Mbit/s", "--step", "*=500ms", "--json"]) == EXIT_DOES_NOT_FIT
    assert json.loads(capsys.readouterr().out)["kind"] == "LinkTooThin"


def test_a_model_of_ones_own_is_planned_by_its_size(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(job)
    path.write_text(JOB.replace("{builtin: {preset: nano}}", "{entrypoint: 'mine:make'}"))
    arguments = ["plan", job, "--parameters", "1.3B", "--link", "*=2Gbit/s", "--step", "*=2.5"]
    assert execute(arguments) == EXIT_OK
    assert "fragments of equal size" in capsys.readouterr().out


def test_torch_is_not_needed(job: str) -> None:
    code = "import sys; from diloco.cli.main import execute; execute(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "plan", job, "--link", "*=1Mbit/s", "--step", "*=1"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing argument 'JOB'"),
        (
            ["JOB", "--link", "west=100"],
            "--link west=100: '100' is a rate without a unit; use bits or bytes per second",
        ),
        (["JOB", "--link", "wset=1Mbit/s"], "'wset' is not in this job; use east, west, syncer or '*'"),
        (
            ["JOB", "--link", "west=1Mbit/s,80"],
            "'80' is a duration without a unit; use us, ms, s, min",
        ),
        (["JOB", "--step", "west=0.5"], "--step: is missing for east/new"),
        (["JOB", "--step", "*=-1"], "'-1' is not a duration"),
        (["JOB", "--parameters", "5M"], "--parameters: 5000000 is not needed"),
        (["JOB", "--parameters", "many"], "--parameters: 'many' is not a number; use digits and a unit"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], told: str, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["plan", *(job if argument == "JOB" else argument for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("diloco: ")
    assert told in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


def test_more_fragments_than_the_model_has_tensors_are_a_mistake(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(job).write_text(JOB + "  sync: {fragments: 99, interval: 99}\n")
    assert execute(["plan", job]) == 2
    assert "sync.fragments is 99, but the model has 34 parameter tensors" in capsys.readouterr().err


def test_an_entrypoint_without_a_size_is_a_mistake(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(job).write_text(JOB.replace("{builtin: {preset: nano}}", "{entrypoint: 'mine:make'}"))
    assert execute(["plan", job]) == 2
    assert "--parameters: is missing, and the size of a model from the entrypoint mine:make" in capsys.readouterr().err
