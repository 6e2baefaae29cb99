"""A tape that was cut into segments replays, whole or without its front; a segment missing in the middle is damage."""

import json
import re
import shutil
from pathlib import Path

import pytest

from diloco.syncer.replay import replay
from diloco.tape.keeper import TapeKeeper, TapeLimits
from diloco.tape.reader import seal
from diloco.tape.segments import find_tapes
from tests.unit.syncer.recorded_run import RecordedRun, only_problem, recorded_job

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs whose tapes have several segments each."""
    folder = tmp_path_factory.mktemp("cut") / "syncer"
    limits = TapeLimits(segment_bytes=20_000, kept_bytes=None)
    first = RecordedRun(folder, recorded_job(), limits=limits)
    first.train(30)
    first.tape.close()
    first.checkpoint()
    second = RecordedRun(folder, recorded_job(), epoch=2, limits=limits)
    second.train(60)
    second.tape.close()
    TapeKeeper(folder / "tape", limits).tidy(second.tape.current, 20_000)
    return folder


@pytest.fixture
def cut_run(cut: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(cut, tmp_path / "syncer"))


def test_compressed_segments_replay_to_the_bit(cut_run: Path) -> None:
    report = replay(cut_run)
    assert report.ok, report.problems
    assert report.missing == ""
    assert all(epoch.merges == epoch.merges_redone > 0 for epoch in report.epochs)
    assert len(list(cut_run.glob("tape/*.gz"))) > 3


def test_a_tape_without_its_front_replays_from_its_first_segment(cut_run: Path) -> None:
    whole = replay(cut_run)
    tapes = find_tapes(cut_run / "tape")
    for path in (*tapes[0].segments, tapes[1].segments[0]):
        path.unlink()
    report = replay(cut_run, explain=True)
    assert report.ok, report.problems
    begins, why = report.missing.split(": ")
    assert begins == "the record begins with segment 1 of epoch 2"
    assert why == "nothing before it is there (the oldest segments are deleted first)"
    (epoch,) = report.epochs
    assert epoch.first_seq > 0
    assert 0 < epoch.events < whole.epochs[1].events
    assert epoch.merges > epoch.merges_redone == 0
    first = next(iter(report.explanation))
    assert int(first.split()[3]) > epoch.first_seq


def test_a_record_without_its_first_epoch_says_so(cut_run: Path) -> None:
    for path in find_tapes(cut_run / "tape")[0].segments:
        path.unlink()
    report = replay(cut_run)
    assert report.ok, report.problems
    assert report.missing.startswith("the record begins with epoch 2: nothing before it is there")
    assert report.epochs[0].merges_redone == report.epochs[0].merges


@pytest.mark.parametrize(
    ("epoch", "which", "text"),
    [
        (0, 1, "segment 1 of epoch 1, before this one, is missing"),
        (0, -1, r"segment 000001\.\d{4}, which came before this one, is missing, although older ones are there"),
        (1, 0, "segment 0 is missing of epoch 2, although older ones are there"),
    ],
    ids=["within", "at the end of an epoch", "at the beginning of an epoch"],
)
def test_a_segment_missing_in_the_middle_is_damage(cut_run: Path, epoch: int, which: int, text: str) -> None:
    find_tapes(cut_run / "tape")[epoch].segments[which].unlink()
    report = replay(cut_run)
    assert not report.ok
    assert any(re.search(text, str(problem)) for problem in report.problems)


def test_an_engine_state_that_was_forged_with_its_hashes_is_named(cut_run: Path) -> None:
    tapes = find_tapes(cut_run / "tape")
    for path in (*tapes[0].segments, *tapes[1].segments[:-1]):
        path.unlink()
    last = tapes[1].segments[-1]
    header, *_ = last.read_bytes().splitlines()
    body = json.loads(header)
    del body["chain"]
    body["header"]["state"]["launched"] = "many"
    last.write_bytes(seal(body, body["after"])[0])
    assert re.search(r"seq \d+: EngineState\.launched is 'many': ", only_problem(replay(cut_run)))
