"""A real syncer process that ends, is killed or starts again: it resumes from its checkpoint, and its tape replays."""

from pathlib import Path

import pytest

from diloco.runtime.process.exits import EXIT_OK
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from tests.integration.two_learners import learner, train_to_the_end
from tests.support.scripted_learner import WAIT_SECONDS
from tests.support.syncer_process import SmallJob, SyncerProcess, replayed, serving

pytestmark = pytest.mark.processes


def test_killed_it_resumes_from_its_checkpoint_and_both_epochs_replay(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000, lease_seconds=5)
    with serving(job, tmp_path / "s", "--record") as syncer, learner(job, syncer) as one:
        one.begin().train(lambda _: "a checkpoint is due" in syncer.log)
        before = syncer.status()
        syncer.kill()
        assert one.over.wait(WAIT_SECONDS)
    saved = checkpoint_names(tmp_path / "s" / "checkpoints")
    job = SmallJob(tmp_path, tokens=round(before.merged_tokens) + 5_000, lease_seconds=5)
    with serving(job, tmp_path / "s", "--record", "--exit-when-finished") as syncer:
        status = syncer.status()
        assert status.epoch == 2
        assert status.checkpoint.newest == saved[-1]
        assert 0 < status.syncer_step <= before.syncer_step
        train_to_the_end(job, syncer)
        assert syncer.exit_code() == EXIT_OK, syncer.log
    report = replayed(tmp_path / "s")
    assert [epoch.recorded for epoch in report.epochs] == [True, True]
    assert all(epoch.merges == epoch.merges_redone > 0 for epoch in report.epochs)


@pytest.mark.core
def test_on_sigterm_it_checkpoints_so_that_nothing_is_lost(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, checkpoint_every=3600)
    with serving(job, tmp_path / "s") as syncer, learner(job, syncer) as one:
        one.begin().train(lambda this: len(this.merged) >= 5)
        status = syncer.status()
        assert syncer.terminate() == EXIT_OK, syncer.log
    with SyncerProcess(job, tmp_path / "s") as syncer:
        again = syncer.serving().status()
        assert again.syncer_step >= status.syncer_step
        assert again.bytes_by_region[0].up.bulk >= status.bytes_by_region[0].up.bulk > 0
        assert again.learners[0].steps >= 5


def test_a_corrupt_newest_checkpoint_is_reported_and_the_previous_one_used(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with serving(job, tmp_path / "s") as syncer, learner(job, syncer) as one:
        one.begin().train(lambda this: len(this.merged) >= 5)
        syncer.terminate()
    folder = tmp_path / "s" / "checkpoints"
    *older, newest = checkpoint_names(folder)
    damaged = (folder / newest / "00001.safetensors").stat().st_ino
    good = [name for name in older if (folder / name / "00001.safetensors").stat().st_ino != damaged][-1]
    with (folder / newest / "00001.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte[0] ^ 1]))
    with serving(job, tmp_path / "s") as syncer:
        assert f"{newest}/00001.safetensors: its digest does not match" in syncer.log
        assert syncer.status().checkpoint.newest == good
        assert syncer.status().phase == "Waiting"
