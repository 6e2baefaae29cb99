"""A real syncer process whose tape is cut many times while it is killed again and again, and on a small disk."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from diloco.runtime.exits import EXIT_OK
from diloco.syncer.replay import replay
from diloco.tape.segments import COMPRESSED, find_tapes
from tests.integration.two_learners import learner
from tests.support.machine_limits import Filler, small_disk
from tests.support.scripted_learner import WAIT_SECONDS
from tests.support.syncer_process import SmallJob, SyncerProcess

pytestmark = pytest.mark.processes


def segments(tape: Path, epoch: int) -> int:
    return sum(len(files.segments) for files in find_tapes(tape) if files.epoch == epoch)


def is_cut(tape: Path, epoch: int, _: object) -> bool:
    """Whether the epoch's tape has been cut as often as its number says."""
    return segments(tape, epoch) > epoch


def test_killed_while_its_tape_is_cut_it_goes_on_and_every_epoch_replays(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000, tape="1Mi", lease_seconds=5)
    tape = tmp_path / "s" / "tape"
    for epoch in range(1, 5):
        with SyncerProcess(job, tmp_path / "s") as syncer:
            syncer.serving()
            with learner(job, syncer, instance=f"process {epoch}") as one:
                # Killed at once when another segment has begun: the one before it is being compressed.
                one.begin().train(partial(is_cut, tape, epoch))
                syncer.kill()
                assert one.over.wait(WAIT_SECONDS)
    report = replay(tmp_path / "s")
    assert report.ok, report.problems
    assert [epoch.epoch for epoch in report.epochs] == [1, 2, 3, 4]
    assert all(epoch.merges > 10 for epoch in report.epochs)
    assert any(path.name.endswith(COMPRESSED) for path in tape.iterdir())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    with small_disk(tmp_path, 12_288) as folder:
        yield folder


def test_on_a_full_disk_its_tape_waits_and_is_cut_on_later(tmp_path: Path, disk: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000, tape="1Mi")
    tape = disk / "s" / "tape"
    tape.mkdir(parents=True)
    old = tape / "000001.jsonl"
    old.write_bytes(bytes(1 << 20))  # of an earlier version, and beyond the bound alone
    with SyncerProcess(job, disk / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one:
            one.begin().train(lambda _: segments(tape, 2) > 1)
            filler = Filler(disk / "filler")
            one.train(lambda _: filler.fill() and "the tape waits for the disk" in syncer.status().tape_problem)
            step = syncer.status().syncer_step
            one.train(lambda _: filler.fill() and syncer.status().syncer_step >= step + 5)
            filler.path.unlink()
            one.train(lambda _: "no line was lost" in syncer.log)
            now = segments(tape, 2)
            one.train(lambda _: segments(tape, 2) > now)
            assert syncer.terminate() == EXIT_OK, syncer.log
    assert not old.exists()
    report = replay(disk / "s")
    assert report.ok, report.problems
    assert report.missing.startswith("the record begins with epoch 2")
    assert report.epochs[0].torn is None
