"""``diloco run`` with real processes: through failures to a report, interrupted, killed, and with wrong input."""

import json
import math
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from diloco.local.journal import read_journal
from diloco.model import load_model
from diloco.runtime.exits import EXIT_INTERRUPTED
from testbed import fork_server
from tests.support.local_run import (
    JOB,
    LEARNERS,
    PROGRAM,
    WAIT_SECONDS,
    merging,
    processes_of,
    run,
    started,
    status,
    wait_until,
    write_job,
)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
JOB_OVER_CLUSTERS = JOB.replace("name: west,", "name: west, cluster: {kubeconfigSecret: {name: far}},").replace(
    "syncer: {", "syncer: {expose: {type: LoadBalancer}, "
)


def test_a_run_goes_through_failures_to_a_model_and_a_report(tmp_path: Path) -> None:
    output = tmp_path / "out"
    done = run(
        write_job(tmp_path, 40_000),
        output,
        *("--record", "--slow", "west=0.5"),
        *("--chaos", "kill:west/old/0@step=60", "--chaos", "cut:east@step=200,seconds=4"),
        *("--chaos", "kill:syncer@step=300"),
        popen=subprocess.Popen,  # as a user starts it, and as it starts others
    )
    assert done.returncode == 0, done.stderr
    events = [(entry.event, entry.process) for entry in read_journal(output / "supervisor.jsonl")]
    assert {("kill", "west/old/0"), ("cut", "east"), ("heal", "east"), ("kill", "syncer")} <= set(events)
    assert events.count(("start", "west/old/0")) == 2
    summary = json.loads((output / "summary.json").read_text())
    assert summary["complete"]
    assert summary["tokens"] >= 40_000
    assert summary["eval_loss"] < summary["eval_loss_start"]
    assert 0 < summary["bytes_pushed"] < summary["bytes_pulled"] < summary["data_parallel_bytes"]
    assert [learner["id"] for learner in summary["learners"]] == list(LEARNERS)
    assert all(learner["steps"] > 60 for learner in summary["learners"])
    for told in (summary, *summary["learners"]):
        assert math.fsum(told["time_shares"].values()) == pytest.approx(1.0)
        assert told["time_shares"]["merged"] == pytest.approx(told["merged"])
    assert summary["learners"][1]["time_shares"]["lost"] > 0
    assert (output / "report.html").read_text().startswith("<!doctype html>")
    assert load_model(output / "model.safetensors").info.job == "small"
    assert (output / "sample.txt").read_text().strip()
    assert "evaluation loss" in done.stdout
    assert f"report: {output / 'report.html'}" in done.stdout
    replayed = fork_server.run([*PROGRAM, "replay", str(output)])
    assert replayed.returncode == 0, replayed.stderr
    assert "redone to the bit" in replayed.stdout
    # Whatever happened to links and processes, no learner claimed more than it had done.
    syncer_log = (output / "logs" / "syncer.log").read_text()
    assert not any(text in syncer_log for text in ("neither may go back", " claims ", "since it received version"))
    model = ["--job", str(output / "job.yaml"), "--model", str(output / "model.safetensors")]
    evaluated = fork_server.run([*PROGRAM, "evaluate", *model, "--json"])
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["loss"] == pytest.approx(summary["eval_loss"], rel=1e-6)
    # A run that is complete is not run again.
    assert "is complete" in run(tmp_path / "job.yaml", output, "--resume").stdout


def test_an_interrupted_run_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 40_000), tmp_path / "out"
    with started(job, output, "--slow", "west=0.5") as process:
        wait_until(lambda: merging(output), process)
        # A learner that has made no step has nothing to continue from.
        wait_until(lambda: all(learner.steps for learner in status(output).learners), process)
        process.send_signal(signal.SIGINT)
        told, complaints = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == EXIT_INTERRUPTED, complaints
    assert f"to continue, run: diloco run {job} --output {output} --resume --slow west=0.5" in told
    assert processes_of(output) == []
    assert not (output / "summary.json").exists()
    resumed = run(job, output, "--resume", "--slow", "west=0.5")
    assert resumed.returncode == 0, resumed.stderr
    assert "continues from its own checkpoint" in (output / "logs" / "east.fast.0.log").read_text()
    assert json.loads((output / "summary.json").read_text())["complete"]


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 10_000_000), tmp_path / "out"
    with started(job, output) as process:
        wait_until(lambda: merging(output), process)
        children = processes_of(output)
        assert len(children) == 4  # the supervisor itself, the syncer and two learners
        process.kill()
        gone, left = psutil.wait_procs(children, timeout=WAIT_SECONDS)
    assert (len(gone), left) == (4, [])


def test_a_second_interrupt_does_not_wait_for_processes_that_hang(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 10_000_000), tmp_path / "out"
    with started(job, output) as process:
        wait_until(lambda: merging(output), process)
        for child in processes_of(output):
            if child.pid != process.pid:
                child.suspend()
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping the learners" in os.read(process.stdout.fileno(), 1 << 16).decode(), process)  # type: ignore[union-attr]  # it is a pipe
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == EXIT_INTERRUPTED
    assert processes_of(output) == []


def test_what_a_process_finds_wrong_is_the_runs_one_line(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 1000, JOB_OVER_CLUSTERS), tmp_path / "out"
    (tmp_path / "text.txt").unlink()
    failed = run(job, output)
    told = "the manifest puts west into other clusters; here every region runs on this machine"
    assert told in failed.stdout.splitlines()
    assert failed.returncode == 2
    assert failed.stderr.startswith("diloco: ")
    assert str(tmp_path / "text.txt") in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert processes_of(output) == []


def test_a_run_ends_when_failures_leave_fewer_than_the_minimum_learners(tmp_path: Path) -> None:
    job, output = write_job(tmp_path, 10_000_000), tmp_path / "out"
    policy = "  failurePolicy: {maxRestartsPerLearner: 0, minimumLearners: 2}\n"
    job.write_text(job.read_text() + policy)
    failed = run(job, output, "--chaos", "kill:west/old/0@step=5")
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1
    assert "west/old/0" in failed.stderr
    assert processes_of(output) == []
