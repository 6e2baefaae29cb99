"""``diloco run`` through kills of a learner and the syncer, and scaled: no sequence is merged twice in an epoch."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from diloco.runtime.process.exits import EXIT_INTERRUPTED, EXIT_OK
from testbed import fork_server
from testbed.fork_server import Popen
from tests.support.local_run import PROGRAM, WAIT_SECONDS, LocalRun, of, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

FIRST, SECOND, SLOW = "east/fast/0", "east/fast/1", "west/old/0"


def data(run: LocalRun) -> dict[str, Any]:
    command = [*PROGRAM, "data", str(run.output), "--json"]
    told: dict[str, Any] = json.loads(fork_server.run(command, WAIT_SECONDS).stdout)
    return told


def goes_on(run: LocalRun, learner: str) -> None:
    run.wait_for(lambda status: of(status, learner).state == "Training")
    run.trains_on(learner, of(run.status(), learner).steps)


def scaled_up(run: LocalRun) -> "subprocess.Popen[str]":
    """The second learner of a pool, which is planned in the manifest first."""
    path = run.output / "job.yaml"
    job = yaml.safe_load(path.read_text())
    job["spec"]["regions"][0]["pools"][0]["learners"] = 2
    path.write_text(yaml.safe_dump(job))
    command = [word for word in run.learner(FIRST).cmdline() if word]
    at = command.index("--parent")
    dotted = SECOND.replace("/", ".")
    words = [word.replace(FIRST, SECOND).replace("east.fast.0", dotted) for word in command[:at] + command[at + 2 :]]
    return Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)


def test_no_sequence_is_merged_twice_over_kills_and_scaling(tmp_path: Path) -> None:
    with LocalRun(write_job(tmp_path), "--slow", "east=0.3", "--slow", "west=0.1") as run:
        run.all_train()
        goes_on(run, SLOW)
        run.learner(FIRST).kill()
        goes_on(run, FIRST)
        run.wait_until(run.merging)
        second = scaled_up(run)
        try:
            run.wait_for(lambda status: any(one.id == SECOND for one in status.learners))
            goes_on(run, SECOND)
            run.syncer().kill()
            goes_on(run, SECOND)
            second.send_signal(signal.SIGTERM)
            assert second.wait(WAIT_SECONDS) == EXIT_OK
        finally:
            second.kill()
            second.wait()
        goes_on(run, FIRST)
        live = data(run)
        assert run.interrupt().returncode == EXIT_INTERRUPTED
    told = data(run)
    assert live["twice"] == told["twice"] == 0
    assert told["sequences"] == live["sequences"] > 0
    for epoch in told["epochs"]:
        assert epoch["dealt"] == epoch["merged"] + epoch["lost"] + epoch["waiting"]
    assert sum(epoch["merged"] for epoch in told["epochs"]) > 0
