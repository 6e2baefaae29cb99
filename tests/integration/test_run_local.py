"""``diloco run`` with real processes: through failures to a report, interrupted, killed, and with wrong input."""

import importlib
import json
import math
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from diloco.model import load_model
from diloco.runtime.process.exits import EXIT_INTERRUPTED
from testbed import fork_server
from tests.support.local_run import LEARNERS, PROGRAM, WAIT_SECONDS, LocalRun, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.mark.core
def test_a_run_goes_through_failures_to_a_model_and_a_report(tmp_path: Path) -> None:
    faults = (
        *("--chaos", "kill:west/old/0@step=30", "--chaos", "cut:east@step=80,seconds=4"),
        *("--chaos", "kill:syncer@step=70"),
    )
    job = write_job(tmp_path, 40_000)
    # As a user starts it, and as it starts others.
    with LocalRun(job, "--record", "--slow", "west=0.5", *faults, popen=subprocess.Popen) as run:
        done = run.ended()
    assert done.returncode == 0, done.stderr
    expected = {("kill", "west/old/0"), ("cut", "east"), ("heal", "east"), ("kill", "syncer")}
    assert expected <= set(run.events())
    assert run.starts("west/old/0") == 2
    summary = run.summary()
    assert summary["tokens"] >= 40_000
    assert summary["eval_loss"] < summary["eval_loss_start"]
    assert 0 < summary["bytes_pushed"] < summary["bytes_pulled"] < summary["data_parallel_bytes"]
    assert [learner["id"] for learner in summary["learners"]] == list(LEARNERS)
    assert all(learner["steps"] > 30 for learner in summary["learners"])
    for told in (summary, *summary["learners"]):
        assert math.fsum(told["time_shares"].values()) == pytest.approx(1.0)
        assert told["time_shares"]["merged"] == pytest.approx(told["merged"])
    assert summary["learners"][1]["time_shares"]["lost"] > 0
    assert (run.output / "report.html").read_text().startswith("<!doctype html>")
    assert load_model(run.output / "model.safetensors").info.job == "small"
    assert (run.output / "sample.txt").read_text().strip()
    assert "evaluation loss" in done.stdout
    assert f"report: {run.output / 'report.html'}" in done.stdout
    replayed = fork_server.run([*PROGRAM, "replay", str(run.output)])
    assert replayed.returncode == 0, replayed.stderr
    assert "redone to the bit" in replayed.stdout
    boards = tmp_path / "boards"
    tracked = fork_server.run([*PROGRAM, "track", str(run.output), "--tensorboard", str(boards)])
    assert tracked.returncode == 0, tracked.stderr
    assert _curve(boards, "job/eval_loss")[-1] == pytest.approx(summary["eval_loss"])
    assert all(norm > 0 for norm in _curve(boards, "learners/west/old/0/gradient_norm"))
    assert all(0 < ratio <= 1 for ratio in _curve(boards, "fragments/0/agreement"))
    # Whatever happened to links and processes, no learner claimed more than it had done.
    wrong = ("neither may go back", " claims ", "since it received version")
    assert not any(text in run.log("syncer") for text in wrong)
    model = ["--job", str(job), "--model", str(run.output / "model.safetensors")]
    evaluated = fork_server.run([*PROGRAM, "evaluate", *model, "--json"])
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["loss"] == pytest.approx(summary["eval_loss"], rel=1e-6)
    # A run that is complete is not run again.
    with LocalRun(job, "--resume") as again:
        assert "is complete" in again.ended().stdout
    # With a larger budget it goes on from there.
    write_job(tmp_path, 44_000)
    with LocalRun(job, "--resume") as more:
        assert more.ended().returncode == 0
    longer = more.summary()
    assert 44_000 <= longer["tokens"] < 40_000 + summary["tokens"]
    assert longer["eval_loss_start"] == summary["eval_loss_start"]
    assert load_model(run.output / "model.safetensors").info.tokens == longer["tokens"]


def _curve(boards: Path, name: str) -> list[float]:
    # It loads for seconds.
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(boards))
    read.Reload()
    return [point.value for point in read.Scalars(name)]


@pytest.mark.core
def test_an_interrupted_run_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    job = write_job(tmp_path, 40_000)
    with LocalRun(job, "--slow", "west=0.5") as run:
        run.wait_until(run.merging)
        # A learner that has made no step has nothing to continue from.
        run.wait_for(lambda status: all(learner.steps for learner in status.learners))
        ended = run.interrupt()
    assert ended.returncode == EXIT_INTERRUPTED, ended.stderr
    assert f"to continue, run: diloco run {job} --output {run.output} --resume --slow west=0.5" in ended.stdout
    assert run.processes() == []
    assert not (run.output / "summary.json").exists()
    with LocalRun(job, "--resume", "--slow", "west=0.5") as resumed:
        ended = resumed.ended()
    assert ended.returncode == 0, ended.stderr
    assert "continues from its own checkpoint" in resumed.log("east/fast/0")
    assert resumed.summary()


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with LocalRun(write_job(tmp_path)) as run:
        run.wait_until(run.merging)
        processes = run.processes()
        assert len(processes) == 4  # the supervisor itself, the syncer and two learners
        run.process.kill()
        gone, left = psutil.wait_procs(processes, timeout=WAIT_SECONDS)
    assert (len(gone), left) == (4, [])


def test_a_second_interrupt_does_not_wait_for_processes_that_hang(tmp_path: Path) -> None:
    with LocalRun(write_job(tmp_path)) as run:
        run.wait_until(run.merging)
        for process in run.processes():
            if process.pid != run.process.pid:
                process.suspend()
        run.process.send_signal(signal.SIGINT)
        assert run.process.stdout is not None
        told = run.process.stdout.fileno()
        run.wait_until(lambda: "stopping the learners" in os.read(told, 1 << 16).decode())
        assert run.interrupt().returncode == EXIT_INTERRUPTED
    assert run.processes() == []


def test_what_a_process_finds_wrong_is_the_runs_one_line(tmp_path: Path) -> None:
    elsewhere = {"name": "west", "cluster": {"kubeconfigSecretRef": {"name": "far"}}, "pools": [{"name": "old"}]}
    regions = [{"name": "east", "pools": [{"name": "fast"}]}, elsewhere]
    job = write_job(tmp_path, 1000, regions=regions, syncer={"expose": {"type": "LoadBalancer"}})
    (tmp_path / "text.txt").unlink()
    with LocalRun(job) as run:
        failed = run.ended()
    told = "the manifest puts west into other clusters; here every region runs on this machine"
    assert told in failed.stdout.splitlines()
    assert failed.returncode == 2
    assert failed.stderr.startswith("diloco: ")
    assert str(tmp_path / "text.txt") in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert run.processes() == []


def test_a_run_ends_when_failures_leave_fewer_than_the_minimum_learners(tmp_path: Path) -> None:
    job = write_job(tmp_path, failurePolicy={"maxRestartsPerLearner": 0, "minimumLearners": 2})
    with LocalRun(job, "--chaos", "kill:west/old/0@step=5") as run:
        failed = run.ended()
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1
    assert "west/old/0" in failed.stderr
    assert run.processes() == []
