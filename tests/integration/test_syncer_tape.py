"""A real syncer process whose tape is cut many times while it is killed again and again."""

from functools import partial
from pathlib import Path

import pytest

from diloco.tape.segments import COMPRESSED
from tests.integration.two_learners import learner, segments
from tests.support.scripted_learner import WAIT_SECONDS
from tests.support.syncer_process import SmallJob, replayed, serving

pytestmark = pytest.mark.processes


def is_cut(tape: Path, epoch: int, _: object) -> bool:
    """Whether the epoch's tape has been cut as often as its number says."""
    return segments(tape, epoch) > epoch


def test_killed_while_its_tape_is_cut_it_goes_on_and_every_epoch_replays(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000, tape="1Mi", lease_seconds=5)
    tape = tmp_path / "s" / "tape"
    for epoch in range(1, 4):
        with serving(job, tmp_path / "s") as syncer, learner(job, syncer, instance=f"process {epoch}") as one:
            # Killed at once when another segment has begun: the one before it is being compressed.
            one.begin().train(partial(is_cut, tape, epoch))
            syncer.kill()
            assert one.over.wait(WAIT_SECONDS)
    report = replayed(tmp_path / "s")
    assert [epoch.epoch for epoch in report.epochs] == [1, 2, 3]
    assert all(epoch.merges > 10 for epoch in report.epochs)
    assert any(path.name.endswith(COMPRESSED) for path in tape.iterdir())
