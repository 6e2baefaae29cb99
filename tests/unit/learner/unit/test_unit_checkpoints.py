"""Checkpoints of a learner of several processes, which are threads here."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from diloco.learner.checkpoint import CheckpointWriteError
from tests.support.damage import DAMAGES
from tests.support.machine_limits import files_of_at_most
from tests.support.ranks_in_threads import Unit, moments, rows, whole

Start = Callable[..., Unit]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Unit] = []

    def begin(*args: object, folder: Path = tmp_path, **named: object) -> Unit:
        started.append(Unit(folder, *args, **named))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for unit in started:
        unit.close()


def parts(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("parts/*/*"))


@pytest.mark.parametrize(("before", "now"), [(2, 2), (2, 3), (3, 1), (1, 2), (1, 4), (4, 2), (2, 7), (7, 3)], ids=str)
@pytest.mark.parametrize("place", [rows, whole])
def test_other_numbers_of_processes_go_on_to_the_bit(start: Start, before: int, now: int, place: object) -> None:
    start(before, place=place).save(7)
    again = start(now, place=rows)
    assert again.load() == 7
    assert torch.equal(again.restored(), moments(7))


def test_two_are_kept_with_their_parts(start: Start, tmp_path: Path) -> None:
    unit = start(3)
    for steps in (1, 2, 3, 4):
        unit.save(steps)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000003", "00000004", "parts"]
    # The oldest goes as the next one begins.
    assert {name.split("/")[1] for name in parts(tmp_path)} == {"00000002", "00000003", "00000004"}
    alone = start(1)
    assert alone.load() == 4
    for steps in (5, 6, 7):
        alone.save(steps)
    assert parts(tmp_path) == []


def test_of_copies_one_on_each_node_is_written(start: Start, tmp_path: Path) -> None:
    start(4, 2, whole).save(3)
    assert parts(tmp_path / "node-0") == []
    assert parts(tmp_path / "node-1") == ["parts/00000001/state-00002-of-00004.safetensors"]
    again = start(4, 2, whole)
    assert again.load() == 3
    assert all(torch.equal(optimizer.held["exp_avg.w"], moments(3)) for optimizer in again.optimizers)


def test_nodes_need_no_parts_of_each_other(start: Start) -> None:
    start(4, 2).save(3)
    again = start(4, 2)
    assert again.load() == 3
    assert torch.equal(again.restored(), moments(3))


SECOND = "state-00001-of-00003.safetensors"


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_if_a_part_is_damaged_all_take_the_checkpoint_before(
    start: Start, tmp_path: Path, ranks: int, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    unit = start(3)
    unit.save(1)
    unit.save(2)
    path = tmp_path / "parts" / "00000002" / SECOND
    damage(path)
    again = start(ranks)
    assert again.load() == 1
    assert torch.equal(again.restored(), moments(1))
    what = "is damaged, or of another checkpoint" if path.exists() else "is missing"
    assert [record.getMessage() for record in caplog.records] == [
        f"ignoring checkpoint {tmp_path / '00000002'}: {SECOND} {what}"
    ]


def test_if_no_checkpoint_is_whole_nothing_is_restored(start: Start, tmp_path: Path) -> None:
    start(3).save(1)
    (tmp_path / "parts" / "00000001" / "state-00002-of-00003.safetensors").unlink()
    again = start(3)
    assert again.load() is None
    assert [optimizer.held for optimizer in again.optimizers] == [{}, {}, {}]


def test_a_part_of_another_checkpoint_is_not_used(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unit = start(3)
    unit.save(1)
    unit.save(2)
    folder = tmp_path / "parts"
    shutil.copy(folder / "00000001" / SECOND, folder / "00000002" / SECOND)
    assert start(3).load() == 1
    assert f"{SECOND} is damaged, or of another checkpoint" in caplog.text


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_that_cannot_be_written_leaves_the_ones_before(
    start: Start, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = start(2)
    unit.save(1)
    optimizer = unit.optimizers[rank]
    with monkeypatch.context() as patch:
        state = {"exp_avg.w": torch.zeros(100_000)}
        patch.setattr(optimizer, "state", lambda: state)
        message = "could not write its part" if rank else "cannot write the checkpoint"
        with files_of_at_most(10_000), pytest.raises(CheckpointWriteError, match=message):
            unit.save(2)
    assert start(2).load() == 1
    unit.save(3)
    assert start(2).load() == 3


def test_where_nothing_can_be_written_no_process_waits(start: Start, tmp_path: Path) -> None:
    unit = start(2, folder=tmp_path / "file")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointWriteError, match="cannot write the checkpoint"):
        unit.save(1)
    (tmp_path / "file").unlink()
    unit.save(2)
    assert start(2, folder=tmp_path / "file").load() == 2


def test_parts_that_no_manifest_names_are_removed(start: Start, tmp_path: Path) -> None:
    left = tmp_path / "parts" / "00000009" / SECOND
    left.parent.mkdir(parents=True)
    left.touch()
    start(2).save(1)
    assert parts(tmp_path) == ["parts/00000001/state-00001-of-00002.safetensors"]


def test_the_end_of_a_process_ends_a_checkpoint_with_one_line(start: Start) -> None:
    unit = start(2)
    unit.save(1)
    unit.lose_a_writer()
    with pytest.raises(CheckpointWriteError, match="another process of this learner has ended") as raised:
        unit.save(2)
    assert "\n" not in str(raised.value)
