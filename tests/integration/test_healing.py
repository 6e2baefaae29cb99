"""``diloco run`` with a learner that hangs, and with one that diverges: both heal, and the other one trains on."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from diloco.runtime.journal import read_journal
from diloco.runtime.process.exits import EXIT_INTERRUPTED, EXIT_OK, EXIT_STUCK
from diloco.spec.status.engine import LearnerStatus
from diloco.spec.status.syncer import SyncerStatus
from testbed import fork_server
from tests.support.faulty_models import FAULTS, VICTIM
from tests.support.local_run import ENDLESS, PROGRAM, WAIT_SECONDS, LocalRun, of, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

WITNESS = "east/fast/0"


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that tells the model what to do."""
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv(FAULTS, str(folder))
    repository = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{repository}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return folder


def faulty_job(folder: Path, model: str, quorum: int, tokens: int = ENDLESS) -> Path:
    return write_job(
        folder,
        tokens,
        model={"entrypoint": f"tests.support.faulty_models:{model}"},
        training={"batchSize": 2, "evaluation": {"sequences": 4}},
        sync={"fragments": 3, "interval": 6, "overlap": 2, "quorum": quorum, "leaseSeconds": 2},
        failurePolicy={"stuckSeconds": 4, "quarantineSeconds": 4},
    )


def victims(run: LocalRun, holds: Callable[[LearnerStatus], object]) -> SyncerStatus:
    """Wait until the victim's status is so; the whole status."""
    return run.wait_for(lambda status: holds(of(status, VICTIM)))


def test_a_learner_that_hangs_is_restarted_and_merged_again(tmp_path: Path, faults: Path) -> None:
    with LocalRun(faulty_job(tmp_path, "hanging", 1)) as run:
        hung = victims(run, lambda victim: victim.restarts == 1)
        merged = of(hung, VICTIM).merged_tokens
        later = victims(run, lambda victim: victim.state == "Training" and victim.merged_tokens > merged)
        assert run.interrupt().returncode == EXIT_INTERRUPTED
    assert (faults / "has hung").exists()
    exits = [entry for entry in read_journal(run.output / "supervisor.jsonl") if entry.event == "exit"]
    assert [entry.details["code"] for entry in exits if entry.process == VICTIM] == [EXIT_STUCK, EXIT_OK]
    assert (of(later, WITNESS).restarts, of(later, WITNESS).incarnation) == (0, of(hung, WITNESS).incarnation)
    told = run.log(VICTIM)
    assert "in fail" in told, "where it hung"
    assert "Stuck: alive, but no step for " in told
    assert "the training thread does not return" in told
    replays(run)


def test_a_learner_that_diverges_is_reset_quarantined_and_let_back_in(tmp_path: Path, faults: Path) -> None:
    (faults / "diverges").touch()
    with LocalRun(faulty_job(tmp_path, "diverging", 2, 50_000), "--record") as run:
        reset = victims(run, lambda victim: victim.resets == 1)
        assert "not finite" in of(reset, VICTIM).diverged_reason
        quarantined = victims(run, lambda victim: victim.state == "Quarantined")
        assert (quarantined.quorum, quarantined.quorum_wanted) == (1, 2)
        step = quarantined.syncer_step + 20
        run.wait_for(lambda status: status.syncer_step > step and of(status, VICTIM).state == "Quarantined")
        (faults / "diverges").unlink()
        # On a slow machine its quarantine may have ended meanwhile, and begun again.
        back = victims(run, lambda victim: victim.resets >= 2 and victim.state == "Training")
        assert back.quorum == 2
        merged = of(back, VICTIM).merged_tokens
        victims(run, lambda victim: victim.merged_tokens > merged)
        assert run.ended().returncode == EXIT_OK
    summary = run.summary()
    assert summary["eval_loss"] < summary["eval_loss_start"]
    parameters = load_file(run.output / "syncer" / "model.safetensors")
    assert all(values.isfinite().all() for values in parameters.values())
    exits = [entry for entry in read_journal(run.output / "supervisor.jsonl") if entry.event == "exit"]
    assert {entry.details["code"] for entry in exits} == {EXIT_OK}, "nobody was restarted"
    assert run.log(VICTIM).count("starting over from the global model") == of(back, VICTIM).resets
    assert "starting over" not in run.log(WITNESS)
    replays(run)


def replays(run: LocalRun) -> None:
    """The syncer's tape leads to the same decisions, and to the same merges if they were recorded."""
    done = fork_server.run([*PROGRAM, "replay", str(run.output)], WAIT_SECONDS)
    assert done.returncode == EXIT_OK, (done.stdout, done.stderr)
