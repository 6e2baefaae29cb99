"""Where a syncer keeps its files, how one life is told from another, and that only one uses them."""

import errno
import fcntl
import os
import shutil
import time
from pathlib import Path

import pytest

from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_UNEXPECTED
from diloco.syncer.disk.directory import SyncerDirectory, epoch_on_wire
from diloco.syncer.errors import SyncerError
from tests.support.hand_clock import HandClock
from tests.support.machine_limits import full_disk, open_files
from tests.support.watched_disk import watch_disk


@pytest.mark.parametrize("content", ["", "four", None, "a pipe"])
def test_an_epoch_does_not_come_twice_where_the_file_is_lost(tmp_path: Path, content: str | None) -> None:
    with SyncerDirectory(tmp_path) as directory:
        directory.tape.mkdir()
        (directory.tape / "000008.jsonl").touch()
        if content == "a pipe":
            os.mkfifo(tmp_path / "epoch")
        elif content is not None:
            (tmp_path / "epoch").write_text(content)
        assert directory.begin_epoch() == 9
        assert (tmp_path / "epoch").read_text() == "9\n"


def test_a_second_syncer_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    before = open_files()
    text = "another syncer is using this directory; stop it or wait for its end"
    with SyncerDirectory(tmp_path), pytest.raises(SyncerError, match=text) as refused:
        SyncerDirectory(tmp_path)
    assert refused.value.exit_code == EXIT_UNEXPECTED
    SyncerDirectory(tmp_path).close()
    assert open_files() == before


def test_a_life_begins_on_a_full_disk_where_there_was_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = {"lock": ""}
    with (
        full_disk(tmp_path, holding=empty) as disk,
        SyncerDirectory(disk) as directory,
        pytest.raises(OSError, match="No space left"),
    ):
        directory.begin_epoch()
    with full_disk(tmp_path, holding={"epoch": "9\n", "lock": ""}) as disk, SyncerDirectory(disk) as directory:
        files, forced = open_files(), watch_disk(monkeypatch)
        assert directory.begin_epoch() == 10
        assert (disk / "epoch").read_text() == "10\n"
        assert forced[-1] == ("forced", "epoch", b"10\n")
        assert open_files() == files


def test_it_waits_for_the_end_of_the_one_before(tmp_path: Path) -> None:
    first = SyncerDirectory(tmp_path)
    tries = 0

    def waiting() -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            first.close()

    with SyncerDirectory(tmp_path, 60.0, waiting) as second:
        assert tries == 2
        assert second.begin_epoch() == 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What it slept, on a clock that only sleeping moves."""
    clock, slept = HandClock(), list[float]()

    def sleep(seconds: float) -> None:
        assert len(slept) < 100
        slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(time, "sleep", sleep)
    return slept


@pytest.mark.parametrize(
    ("patience", "expected"),
    [({}, []), ({"patience_seconds": 1.25}, [0.5, 0.5, 0.25]), ({"patience_seconds": 0.5}, [0.5])],
)
def test_it_tries_twice_a_second_as_long_as_it_was_told_and_says_so_once(
    tmp_path: Path,
    waits: list[float],
    caplog: pytest.LogCaptureFixture,
    patience: dict[str, float],
    expected: list[float],
) -> None:
    tries = 0

    def waiting() -> None:
        nonlocal tries
        tries += 1

    with SyncerDirectory(tmp_path), pytest.raises(SyncerError, match="another syncer is using this directory"):
        SyncerDirectory(tmp_path, **patience, waiting=waiting)
    assert waits == expected
    assert tries == len(expected) + 1
    assert len(caplog.records) == bool(expected)


@pytest.mark.parametrize(
    ("number", "says", "code"),
    [
        (errno.EOPNOTSUPP, "its file system has no file locks", EXIT_BAD_INPUT),
        (errno.ENOLCK, "cannot be locked (No locks available)", EXIT_UNEXPECTED),
    ],
)
def test_a_volume_that_cannot_be_locked_is_not_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str, code: int
) -> None:
    def flock(_: int, __: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(SyncerError) as refused:
        SyncerDirectory(tmp_path, 60.0)
    assert says in str(refused.value)
    assert refused.value.exit_code == code


def test_a_directory_that_was_set_back_repeats_no_name_on_the_wire(tmp_path: Path) -> None:
    with SyncerDirectory(tmp_path / "s") as directory:
        directory.begin_epoch()
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    with SyncerDirectory(tmp_path / "s") as directory, SyncerDirectory(tmp_path / "copy") as copy:
        lost, again = directory.begin_epoch(), copy.begin_epoch()
    assert lost == again == 2
    assert epoch_on_wire(lost) != epoch_on_wire(again)


def test_an_epoch_comes_after_that_of_a_restored_checkpoint(tmp_path: Path) -> None:
    with SyncerDirectory(tmp_path) as directory:
        assert directory.begin_epoch(7) == 8
        assert directory.begin_epoch(7) == 9


def test_a_training_keeps_its_id_and_takes_that_of_a_backup(tmp_path: Path) -> None:
    with SyncerDirectory(tmp_path / "a") as one, SyncerDirectory(tmp_path / "b") as other:
        first = one.training()
        assert one.training() == first != other.training()
        assert other.training(first) == other.training() == first
        (tmp_path / "a" / "training").write_text("not an id\n")
        assert one.training() == one.training() != first


def test_directories_of_one_training_are_told_apart(tmp_path: Path) -> None:
    with SyncerDirectory(tmp_path / "a") as one, SyncerDirectory(tmp_path / "b") as other:
        assert one.writer() == one.training()
        other.training(one.training())
        first = other.writer()
        assert first not in ("", one.writer())
    with SyncerDirectory(tmp_path / "b") as again:
        assert again.writer() == first
        again.training(again.training())
        assert again.writer() not in (first, again.training()), "what is restored once more is another directory"
