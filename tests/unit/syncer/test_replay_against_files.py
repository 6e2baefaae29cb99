"""A tape that was cut at its end is found, and so is any file of a run that is not what its tape says."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from diloco.syncer.replay import EpochReplay, ReplayReport, exported_model, replay
from diloco.tape.reader import TapeEnd
from tests.unit.syncer.recorded_run import RecordedRun, only_problem, recorded_job

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def lived(directory: Path, *, record: bool = True) -> Path:
    """A run of a syncer that is killed, and of one that ends."""
    job = recorded_job(downlink="Int8")
    first = RecordedRun(directory / "syncer", job, record=record)
    first.train(6)
    first.checkpoint()
    first.train(20, after=6)
    second = RecordedRun(directory / "syncer", job, epoch=2, record=record)
    second.train(60)
    assert second.engine.finished
    second.checkpoint()
    second.end()
    shutil.copy(directory / "syncer" / "model.safetensors", directory)
    (directory / "summary.json").write_text("{}")
    (directory / "logs").mkdir()
    (directory / "logs" / "syncer.log").touch()
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lived(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def tape(run: Path, epoch: int) -> Path:
    return run / "syncer" / "tape" / f"{epoch:06d}.jsonl"


def keep(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def texts(report: ReplayReport) -> list[str]:
    assert not report.ok
    return [str(problem) for problem in report.problems]


def test_files_that_nothing_depends_on_are_named(run: Path) -> None:
    report = replay(run)
    assert report.ok, report.problems
    assert report.unchecked == ("logs/ (1 files)", "summary.json")
    assert [epoch.end is None for epoch in report.epochs] == [True, False]


def test_without_recorded_payloads_parameters_are_held_against_digests(tmp_path: Path) -> None:
    run = lived(tmp_path / "run", record=False)
    report = replay(run)
    assert report.ok, report.problems
    newest = "syncer/checkpoints/000003"
    assert f"{newest}/*.safetensors: all but their parameters" in report.unchecked
    assert f"{newest}/00000.safetensors" not in report.unchecked
    assert "model.safetensors" not in report.unchecked


@pytest.mark.parametrize("lines", [1, 5, -1])
def test_a_last_tape_that_was_cut_at_a_line_is_found(run: Path, lines: int) -> None:
    keep(tape(run, 2), lambda all_lines: all_lines[:lines])
    (found,) = texts(replay(run))
    last = len(tape(run, 2).read_bytes().splitlines()) - 1
    assert found.startswith(f"{tape(run, 2)} seq {last}: the tape ends at line {last}")
    assert ("the run went on to" in found) == (lines > 0)
    assert ("although the job was over" in found) == (lines < 0)


def test_what_curves_show_of_a_cut_tape_is_found(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path, recorded_job())
    run.train(6)
    row = {"epoch": 1, "fragments": {"2": {"version": 1}}}
    (tmp_path / "curves.jsonl").write_text(f"cut{json.dumps(row)}\n{json.dumps(row)}\n")
    assert replay(tmp_path).ok
    keep(tmp_path / "tape" / "000001.jsonl", lambda lines: lines[:3])
    assert only_problem(replay(tmp_path)).endswith("the run went on to version 1 of fragment 2 (curves.jsonl)")


@pytest.mark.parametrize("lines", [1, -1])
def test_an_earlier_tape_that_was_cut_is_shown_by_the_next(run: Path, lines: int) -> None:
    whole = len(tape(run, 1).read_bytes().splitlines()) - 1
    keep(tape(run, 1), lambda all_lines: all_lines[:lines])
    last = len(tape(run, 1).read_bytes().splitlines()) - 1
    assert any(
        f"ends at line {last}, the run went on to line {whole}, as the next epoch's" in one
        for one in texts(replay(run))
    )


def test_a_bit_in_any_checkpoint_or_in_the_model_is_found(run: Path) -> None:
    names = ("manifest.json", *(f"0000{fragment}.safetensors" for fragment in range(4)))
    alike = [[*run.glob(f"syncer/checkpoints/*/{name}")] for name in names]
    assert [len(files) for files in alike] == [3] * 5
    for files in (*alike, [run / "model.safetensors"], [run / "syncer" / "model.safetensors"]):
        before = [path.read_bytes() for path in files]
        for path, content in zip(files, before, strict=True):
            changed = bytearray(content)
            changed[len(changed) // 2] ^= 1
            path.write_bytes(changed)
        told = texts(replay(run))
        assert all(any(str(path.parent) in one for one in told) for path in files), told
        for path, content in zip(files, before, strict=True):
            path.write_bytes(content)
    assert replay(run).ok


def test_a_whole_checkpoint_of_another_run_is_found(run: Path, tmp_path: Path) -> None:
    other = RecordedRun(tmp_path / "other", recorded_job(downlink="Int8"))
    other._random.manual_seed(77)
    other.train(6)
    other.checkpoint()
    place = run / "syncer" / "checkpoints" / "000002"
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "other" / "checkpoints" / "000002", place)
    assert any("000002/00000.safetensors: fragment 0 at version" in one for one in texts(replay(run)))


@pytest.mark.parametrize(
    ("ends", "model"),
    [
        ([TapeEnd("one")], "one"),
        ([TapeEnd("one"), TapeEnd()], "one"),
        ([TapeEnd("one"), TapeEnd("other")], "other"),
        ([TapeEnd("one"), None], ""),
        ([TapeEnd(), TapeEnd()], ""),
    ],
    ids=["its own", "the one before", "the newer", "perhaps another", "none"],
)
def test_the_model_is_that_of_the_last_epoch_that_exported_one(ends: list[TapeEnd | None], model: str) -> None:
    assert exported_model([EpochReplay(number, end=end) for number, end in enumerate(ends, 1)]) == model


def test_a_model_of_another_run_is_found(run: Path) -> None:
    path = run / "model.safetensors"
    path.write_bytes(b"another")
    assert texts(replay(run)) == [f"{path}: is not the model that the syncer exported: it was changed or damaged"]
