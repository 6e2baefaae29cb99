import json
from pathlib import Path
from typing import Any

import pytest

from diloco.cli.main import execute
from diloco.cli.simulations import sweep
from diloco.simulate.world import Simulation
from tests.support.small_job import write_text

JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: simulated}
spec:
  model: {builtin: {preset: pico}}
  data: {text: {path: TEXT}, holdoutFraction: 0.1}
  training: {tokens: 20_000, sequenceLength: 16, batchSize: 4, evaluation: {sequences: 2}}
  sync: {fragments: 6, interval: 6}
  regions:
  - {name: east, pools: [{name: new, learners: 2}]}
  - {name: west, pools: [{name: old}]}
"""
WORLD = """
regions:
  "*":
    link: 100Mbit/s
    roundTripSeconds: 0.02
    pricePerGB: 0.1
    pools: {"*": {stepSeconds: 0.5, pricePerHour: 3.6, preemptionsPerHour: 60, recovery: {meanSeconds: 5}}}
"""


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide terminal, as lines break elsewhere in a narrow one."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, Path]:
    """Job, world and output."""
    (tmp_path / "job.yaml").write_text(JOB.replace("TEXT", str(write_text(tmp_path))))
    (tmp_path / "world.yaml").write_text(WORLD)
    return str(tmp_path / "job.yaml"), str(tmp_path / "world.yaml"), tmp_path / "out"


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_a_simulation_leaves_the_summary_and_the_report_of_a_run(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job, world, out = files
    arguments = ["simulate", job, "--world", world, "--output", str(out), "--seed", "1"]
    assert execute(arguments) == 0
    told = capsys.readouterr().out
    assert "Complete: " in told
    assert f"The report is {out / 'report.html'}." in told
    first = summary_of(out)
    assert first["complete"]
    assert "wall_seconds" not in first
    assert first["virtual_seconds"] == pytest.approx(first["simulation"]["finish_seconds"], abs=1e-3)
    assert first["eval_loss"] is None
    assert first["evaluations"] == []
    hours = first["simulation"]["finish_seconds"] / 3600
    assert first["simulation"]["cost"] == pytest.approx(3 * 3.6 * hours, rel=0.1)
    assert {one["what"] for one in first["incidents"]} >= {"lost: preempted"}
    page = (out / "report.html").read_text()
    assert "Simulated in virtual time, without computing the training; seed 1. Complete: " in page
    assert "evaluation loss" not in page
    assert execute(arguments) == 0
    assert summary_of(out) == first
    assert execute([*arguments[:-1], "2"]) == 0
    assert summary_of(out)["virtual_seconds"] != first["virtual_seconds"]


@pytest.mark.usefixtures("one_torch_thread")
def test_with_training_it_has_losses(files: tuple[str, str, Path]) -> None:
    job, _, out = files
    Path(job).write_text(Path(job).read_text().replace("20_000", "4_000"))
    assert execute(["simulate", job, "--step", "*=0.5", "--train", "--output", str(out)]) == 0
    document = summary_of(out)
    assert document["eval_loss"] < document["eval_loss_start"]
    assert document["simulation"]["trained"]
    assert "evaluation loss" in (out / "report.html").read_text()


def test_a_time_to_simulate_ends_it_with_an_estimate(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job, world, out = files
    assert execute(["simulate", job, "--world", world, "--for", "20s", "--output", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == summary_of(out)
    assert document["simulation"]["ending"] == "TimeUp"
    assert document["simulation"]["finish_seconds"] > 20
    assert document["simulation"]["finish_cost"] > document["simulation"]["cost"]
    assert document["tokens"] > 0  # although the engine counts none before sync.startupSeconds are over


def test_a_sweep_simulates_every_combination(files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    job, world, out = files
    swept = ["--sweep", "sync.interval=6,12", "--sweep", "world.regions.west.link=1Mbit/s,1Gbit/s,unlimited"]
    assert execute(["simulate", job, "--world", world, "--output", str(out), *swept]) == 0
    printed = capsys.readouterr().out
    runs = json.loads((out / "sweep.json").read_text())["runs"]
    assert [tuple(run["values"].values()) for run in runs] == [
        (interval, link) for interval in ("6", "12") for link in ("1Mbit/s", "1Gbit/s", "unlimited")
    ]
    assert {run["ending"] for run in runs} == {"Complete"}
    assert len({run["finish_seconds"] for run in runs}) > 2
    # Half as many exchanges: half the bytes.
    assert runs[4]["bytes_per_second"] < 0.7 * runs[1]["bytes_per_second"]
    assert printed.count("Complete") == 6
    page = (out / "sweep.html").read_text()
    assert page.count("<svg") == 5
    assert "link 1Gbit/s" in page


def test_a_sweep_has_the_defaults_that_the_operator_passes_on(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job, world, out = files
    passed = """metadata: {name: simulated, annotations: {diloco.dev/defaults: '{"spec.sync": {"quorum": 3}}'}}"""
    Path(job).write_text(Path(job).read_text().replace("metadata: {name: simulated}", passed))
    arguments = ["simulate", job, "--world", world, "--output", str(out), "--json"]
    assert execute(arguments) == 0
    once = json.loads(capsys.readouterr().out)
    assert once["quorum_wanted"] == 3
    assert execute([*arguments, "--sweep", "sync.interval=6"]) == 0
    (swept,) = json.loads(capsys.readouterr().out)
    assert swept["finish_seconds"] == once["simulation"]["finish_seconds"]
    assert execute([*arguments, "--sweep", "sync.quorum=1"]) == 0
    (other,) = json.loads(capsys.readouterr().out)
    assert other["finish_seconds"] != swept["finish_seconds"]


def test_the_busiest_link_is_the_fullest_one_in_its_fuller_direction(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job, _, out = files
    arguments = ["simulate", job, "--step", "*=0.5", "--output", str(out), "--json"]
    swept = ["--sweep", "world.regions.west.link=100kbit/s,unlimited", "--sweep", "world.syncer.link=1Gbit/s,unlimited"]
    assert execute([*arguments, *swept]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert [run["busiest_link"] for run in runs] == ["west", "west", "of the syncer", "of the syncer"]
    assert runs[0]["bytes_per_second"] < 1.02 * 12_500  # what is under way at the end counts whole
    assert (out / "sweep.html").read_text().count("<svg") == 4


def test_a_sweep_of_words_has_no_plots(files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    job, world, out = files
    swept = ["--sweep", "sync.downlink=F32,BF16", "--sweep", "world.regions.west.link=unlimited"]
    assert execute(["simulate", job, "--world", world, "--output", str(out), *swept]) == 0
    assert "The runs are also in the table of" in capsys.readouterr().out
    assert "<svg" not in (out / "sweep.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "regions.east.pools.new.stepSeconds: is missing; use seconds, or chipFlops"),
        (["--step", "*=1", "--for", "2"], "--for: '2' is a duration without a unit; use us, ms, s, min, h, d"),
        (["--step", "*=1", "--sweep", "sync.quorum"], "--sweep sync.quorum: 'sync.quorum' is not FIELD=VALUE,VALUE"),
        (["--step", "*=1", "--sweep", "sync.quorum=1,1"], "--sweep sync.quorum=1,1: a value is there twice"),
        (
            ["--step", "*=1", "--sweep", "sync.quorm=1"],
            "--sweep sync.quorm=1: spec.sync.quorm: is not a field here; did",
        ),
        (["--step", "*=1", "--sweep", "sync=1,2"], "--sweep sync=1: spec.sync: 1 is not a mapping"),
        (["--step", "*=1", "--sweep", "world.=1,2"], "'world.=1,2' is not FIELD=VALUE,VALUE; use sync.quorum=1,2,4"),
        (["--step", "*=1", "--sweep", "sync..quorum=1"], "'sync..quorum=1' is not FIELD=VALUE,VALUE"),
        (
            ["--step", "*=1", "--sweep", "regions.east.pools.old.learners=1"],
            "'old' is not in the list there; use a name",
        ),
        (
            ["--step", "*=1", "--sweep", "world.regions.est.link=1Gbit/s"],
            "world.regions.est: is not a region of the job",
        ),
        (["--step", "*=1", "--sweep", "regions.east.x.y=1"], "spec.regions[0].x: is not a field here"),
        (["--step", "*=1", "--train", "--parameters", "1B"], "--parameters: cannot be used with --train"),
        (["--step", "*=1", "--train", "--hf", "x"], "--hf: cannot be used with --train"),
        (["--step", "*=1", "--parameters", "1B"], "--parameters: 1000000000 is not needed"),
    ],
)
def test_a_mistake_is_one_line(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert execute(["simulate", files[0], "--output", str(files[2]), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_combination_that_cannot_run_is_told_before_the_first_run(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job, _, out = files
    Path(job).write_text(Path(job).read_text().replace("{name: old}", "{name: old, learners: 0}"))
    swept = ["--step", "east=1", "--sweep", "regions.west.pools.old.learners=0,1"]
    assert execute(["simulate", job, "--output", str(out), *swept]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "--sweep regions.west.pools.old.learners=1: world.regions.west.pools.old.stepSeconds: is missing;"
        " use seconds, or chipFlops"
    )
    assert not out.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no memory")])
def test_what_ends_a_sweep_keeps_the_runs_before_it(
    files: tuple[str, str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    job, world, out = files
    made = list[Simulation]()

    def simulation(*arguments: Any) -> Simulation:
        if made:
            raise error
        made.append(Simulation(*arguments))
        return made[0]

    monkeypatch.setattr(sweep, "Simulation", simulation)
    arguments = ["simulate", job, "--world", world, "--output", str(out), "--sweep", "sync.interval=6,12"]
    assert execute(arguments) == (130 if isinstance(error, KeyboardInterrupt) else 2)
    assert [run["ending"] for run in json.loads((out / "sweep.json").read_text())["runs"]] == ["Complete"]
    assert capsys.readouterr().out.count("Complete") == isinstance(error, KeyboardInterrupt)


def test_a_directory_that_holds_a_run_is_left_alone(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job, world, out = files
    out.mkdir()
    (out / "supervisor.jsonl").touch()
    assert execute(["simulate", job, "--world", world, "--output", str(out)]) == 2
    assert "holds a run of 'diloco run'; use another directory" in capsys.readouterr().err


def test_a_job_that_cannot_finish_in_its_world_has_an_exit_code_of_its_own(
    files: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    job, _, out = files
    arguments = ["--link", "*=1bit/s", "--step", "*=1", "--output", str(out), "--json"]
    assert execute(["simulate", job, *arguments]) == 5
    assert json.loads(capsys.readouterr().out)["simulation"]["ending"] == "Stalled"
