from pathlib import Path

import pytest

from diloco.syncer.directory import SyncerDirectory
from diloco.syncer.errors import SyncerError
from support.machine_limits import full_disk


def test_every_life_has_a_number_of_its_own(tmp_path: Path) -> None:
    with SyncerDirectory(tmp_path / "new") as directory:
        assert directory.begin_epoch() == 1
    with SyncerDirectory(tmp_path / "new") as directory:
        assert directory.begin_epoch() == 2


@pytest.mark.parametrize("content", ["", "four", None])
def test_an_epoch_does_not_come_twice_where_the_file_is_lost(tmp_path: Path, content: str | None) -> None:
    with SyncerDirectory(tmp_path) as directory:
        directory.tape.mkdir()
        (directory.tape / "000008.jsonl").touch()
        if content is not None:
            (tmp_path / "epoch").write_text(content)
        assert directory.begin_epoch() == 9


def test_a_second_syncer_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    with SyncerDirectory(tmp_path), pytest.raises(SyncerError, match="another syncer is using this directory"):
        SyncerDirectory(tmp_path)
    SyncerDirectory(tmp_path).close()


def test_a_life_begins_on_a_full_disk_where_there_was_one_before(tmp_path: Path) -> None:
    empty = {"lock": ""}
    with (
        full_disk(tmp_path, holding=empty) as disk,
        SyncerDirectory(disk) as directory,
        pytest.raises(OSError, match="No space left"),
    ):
        directory.begin_epoch()
    with full_disk(tmp_path, holding={"epoch": "9\n", "lock": ""}) as disk, SyncerDirectory(disk) as directory:
        assert directory.begin_epoch() == 10
        assert (disk / "epoch").read_text() == "10\n"
