"""A real syncer process that ends, is killed or starts again: it resumes from its checkpoint, and its tape replays."""

import contextlib
import queue
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from diloco.runtime.process.exits import EXIT_OK
from diloco.syncer.disk.checkpoint import CheckpointManifest, load_checkpoint, read_checkpoint_manifest
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from diloco.wire.messages import Welcome
from tests.integration.two_learners import LEARNERS, learner, train_to_the_end
from tests.support.scripted_learner import WAIT_SECONDS, ScriptedLearner
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


def settled(syncer: SyncerProcess, *learners: ScriptedLearner) -> None:
    """Let learners pull until each holds every version that was made."""
    until = time.monotonic() + WAIT_SECONDS
    while any(sum(one.versions) < syncer.status().syncer_step for one in learners):
        assert time.monotonic() < until
        for one in learners:
            with contextlib.suppress(queue.Empty):
                while (message := one.next(0.05)) is not None:
                    one.obey(message)


def test_learners_that_hold_what_a_killed_syncer_lost_take_its_model(tmp_path: Path) -> None:
    # It writes a checkpoint at its begin and its end alone.
    job = SmallJob(tmp_path, tokens=10_000_000, lease_seconds=5, checkpoint_every=3600)
    folder = tmp_path / "s" / "checkpoints"
    with ExitStack() as stack:
        syncer = stack.enter_context(serving(job, tmp_path / "s"))
        both = [stack.enter_context(learner(job, syncer, name).begin()) for name in LEARNERS]
        both[0].train(lambda one: sum(one.versions) >= 4, both[1])
        syncer.kill()
        assert all(one.over.wait(WAIT_SECONDS) for one in both)
        epoch, ahead = both[0].epoch, tuple(both[0].versions)
    kept = manifest_of(folder, checkpoint_names(folder)[-1]).versions
    assert sum(kept) < sum(ahead)
    with ExitStack() as stack:
        syncer = stack.enter_context(serving(job, tmp_path / "s"))
        both = [stack.enter_context(learner(job, syncer, name)) for name in LEARNERS]
        for one in both:
            answer = one.join(epoch=epoch, versions=ahead)
            assert isinstance(answer, Welcome)
            assert tuple(answer.load) == tuple(range(len(kept)))
            assert answer.versions == kept
            one.load(answer)
        assert both[0].welcome is not None
        both[0].train(lambda one: len(one.merged) >= 4, both[1])
        settled(syncer, *both)
        assert syncer.terminate() == EXIT_OK, syncer.log
    last = load_checkpoint(folder, checkpoint_names(folder)[-1], job.layout, job.name)
    for one in both:
        assert tuple(one.versions) == last.manifest.versions
        assert all(torch.equal(one.fragments[p], values) for p, values in enumerate(last.parameters))
    replayed(tmp_path / "s")


def manifest_of(folder: Path, name: str) -> CheckpointManifest:
    return read_checkpoint_manifest(folder / name)


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
