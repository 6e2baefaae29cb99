"""``diloco run`` with a learner that hangs, and with one that diverges: both heal, and the other one trains on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from diloco.local.journal import read_journal
from diloco.runtime.exits import EXIT_INTERRUPTED, EXIT_OK, EXIT_STUCK
from diloco.spec.syncer_status import LearnerStatus, SyncerStatus
from testbed import fork_server
from tests.support.faulty_models import FAULTS, VICTIM
from tests.support.local_run import WAIT_SECONDS, started, status, wait_until, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

WITNESS = "east/fast/0"
JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: faulty}
spec:
  model: {entrypoint: "tests.support.faulty_models:MODEL"}
  data: {text: {path: TEXT}}
  training: {tokens: TOKENS, sequenceLength: 32, batchSize: 2, checkpointEverySteps: 20, evaluation: {sequences: 4}}
  sync: {fragments: 3, interval: 6, overlap: 2, quorum: QUORUM, leaseSeconds: 2}
  failurePolicy: {stuckSeconds: 4, quarantineSeconds: 4}
  syncer: {checkpointEverySeconds: 2}
  regions:
  - {name: east, pools: [{name: fast, learners: 1}]}
  - {name: west, pools: [{name: old, learners: 1}]}
"""


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that tells the model what to do."""
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv(FAULTS, str(folder))
    repository = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{repository}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return folder


def manifest(model: str, quorum: int) -> str:
    return JOB.replace("MODEL", model).replace("QUORUM", str(quorum))


class Run:
    """A run, seen from outside."""

    def __init__(self, output: Path, process: subprocess.Popen[str]) -> None:
        self.output, self.process = output, process

    def until(self, seen: str) -> SyncerStatus:
        """Wait until the victim's status is as this expression says; returns the whole status."""
        found: list[SyncerStatus] = []

        def true() -> bool:
            with contextlib.suppress(OSError, ValueError):
                now = status(self.output)
                if eval(seen, {"victim": of(now, VICTIM), "job": now}):
                    found.append(now)
            return bool(found)

        wait_until(true, self.process)
        return found[0]

    def log(self, name: str) -> str:
        return (self.output / "logs" / f"{name.replace('/', '.')}.log").read_text()


def of(seen: SyncerStatus, learner: str) -> LearnerStatus:
    return next(one for one in seen.learners if one.id == learner)


def test_a_learner_that_hangs_is_restarted_and_merged_again(tmp_path: Path, faults: Path) -> None:
    output = tmp_path / "out"
    with started(write_job(tmp_path, 10**9, manifest("hanging", 1)), output) as process:
        run = Run(output, process)
        hung = run.until("victim.restarts == 1")
        merged = of(hung, VICTIM).merged_tokens
        later = run.until(f"victim.state == 'Training' and victim.merged_tokens > {merged}")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == EXIT_INTERRUPTED
    assert (faults / "has hung").exists()
    exits = [entry for entry in read_journal(output / "supervisor.jsonl") if entry.event == "exit"]
    assert [entry.details["code"] for entry in exits if entry.process == VICTIM] == [EXIT_STUCK, EXIT_OK]
    assert (of(later, WITNESS).restarts, of(later, WITNESS).incarnation) == (0, of(hung, WITNESS).incarnation)
    told = run.log(VICTIM)
    assert "in fail" in told, "where it hung"
    assert "Stuck: alive, but no step for " in told
    assert "the training thread does not return" in told
    replays(output)


def test_a_learner_that_diverges_is_reset_quarantined_and_let_back_in(tmp_path: Path, faults: Path) -> None:
    output = tmp_path / "out"
    (faults / "diverges").touch()
    with started(write_job(tmp_path, 50_000, manifest("diverging", 2)), output, "--record") as process:
        run = Run(output, process)
        reset = run.until("victim.resets == 1")
        assert "not finite" in of(reset, VICTIM).diverged_reason
        quarantined = run.until("victim.state == 'Quarantined'")
        assert (quarantined.quorum, quarantined.quorum_wanted) == (1, 2)
        run.until(f"job.syncer_step > {quarantined.syncer_step + 20} and victim.state == 'Quarantined'")
        (faults / "diverges").unlink()
        # On a slow machine its quarantine may have ended meanwhile, and begun again.
        back = run.until("victim.resets >= 2 and victim.state == 'Training'")
        assert back.quorum == 2
        merged = of(back, VICTIM).merged_tokens
        run.until(f"victim.merged_tokens > {merged}")
        process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == EXIT_OK
    summary = json.loads((output / "summary.json").read_text())
    assert summary["complete"]
    assert summary["eval_loss"] < summary["eval_loss_start"]
    parameters = load_file(output / "syncer" / "model.safetensors")
    assert all(values.isfinite().all() for values in parameters.values())
    exits = [entry for entry in read_journal(output / "supervisor.jsonl") if entry.event == "exit"]
    assert {entry.details["code"] for entry in exits} == {EXIT_OK}, "nobody was restarted"
    assert run.log(VICTIM).count("starting over from the global model") == of(back, VICTIM).resets
    assert "starting over" not in run.log(WITNESS)
    replays(output)


def replays(output: Path) -> None:
    """The syncer's tape leads to the same decisions, and to the same merges if they were recorded."""
    command = [sys.executable, "-m", "diloco.cli.entry", "replay", str(output)]
    done = fork_server.run(command, WAIT_SECONDS)
    assert done.returncode == EXIT_OK, (done.stdout, done.stderr)
