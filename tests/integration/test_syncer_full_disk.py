"""A real syncer process whose disk is full, or fills up in the middle of a file."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco.runtime.process.exits import EXIT_OK
from diloco.syncer.disk.checkpoint_names import checkpoint_names
from tests.integration.two_learners import learner, segments
from tests.support.machine_limits import Filler, small_disk
from tests.support.syncer_process import SmallJob, SyncerProcess, replayed, serving

pytestmark = pytest.mark.processes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    with small_disk(tmp_path, 12_288) as folder:
        yield folder


def test_a_full_disk_costs_checkpoints_and_no_step_and_is_made_up_for(tmp_path: Path, disk: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000, tape="1Mi")
    directory, tape = disk / "s", disk / "s" / "tape"
    tape.mkdir(parents=True)
    old = tape / "000001.jsonl"
    old.write_bytes(bytes(1 << 20))  # beyond the tape's bound alone
    with serving(job, directory) as syncer, learner(job, syncer) as one:
        one.begin().train(lambda _: "a checkpoint is due" in syncer.log and segments(tape, 2) > 1)
        filler = Filler(disk / "filler")
        one.train(lambda _: filler.fill() and "cannot write a checkpoint" in syncer.log)
        # A checkpoint that failed leaves room behind, so it is filled again and again.
        one.train(lambda _: filler.fill() and "the tape waits for the disk" in syncer.status().tape_problem)
        one.train(lambda _: filler.fill() and "No space left" in syncer.status().checkpoint.problem)
        step = syncer.status().syncer_step
        one.train(lambda _: filler.fill() and syncer.status().syncer_step >= step + 5)
        assert "diloco_checkpoint_failures_total 0.0" not in syncer.page("/metrics")
        filler.path.unlink()
        before = syncer.status().checkpoint.newest
        one.train(lambda _: syncer.status().checkpoint.newest > before and "no line was lost" in syncer.log)
        assert syncer.status().checkpoint.problem == ""
        now = segments(tape, 2)
        one.train(lambda _: segments(tape, 2) > now)
        assert syncer.terminate() == EXIT_OK, syncer.log
    assert not old.exists()
    report = replayed(directory)
    assert report.missing.startswith("the record begins with epoch 2")
    assert report.epochs[0].torn is None


def test_a_checkpoint_that_cannot_be_written_in_full_leaves_nothing_behind(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000, lease_seconds=5)
    with serving(job, tmp_path / "s") as syncer, learner(job, syncer) as one:
        one.begin().train(lambda _: "a checkpoint is due" in syncer.log)
        # Every file over 100 kB fails from here on, as on a disk that runs full in the middle of one.
        resource.prlimit(syncer.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        one.train(lambda _: "cannot write a checkpoint" in syncer.log)
        whole = checkpoint_names(tmp_path / "s" / "checkpoints")
        syncer.kill()
    assert not list((tmp_path / "s" / "checkpoints").glob(".*.part"))
    with SyncerProcess(job, tmp_path / "s") as syncer:
        assert syncer.serving().status().checkpoint.newest == whole[-1]
