import os
import shutil
from pathlib import Path

import pytest

from diloco.runtime.journal import Entry, Journal, read_journal


def events(path: Path) -> list[str]:
    return [entry.event for entry in read_journal(path)]


def test_entries_wait_while_the_disk_is_full_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.jsonl"
    told: list[str] = []
    journal = Journal(path, told.append)
    journal.write("run")
    path.rename(tmp_path / "before")
    path.symlink_to("/dev/full")
    journal.write("alive")
    journal.write("exit", "syncer")
    assert told == ["supervisor.jsonl cannot be written (No space left on device); the run continues"]
    path.unlink()
    (tmp_path / "before").rename(path)
    journal.write("end", key="k", seconds=0.0)
    journal.close()
    path.write_text(path.read_text() + '{"event": "sta')  # torn by a kill
    assert events(path) == ["run", "alive", "exit", "end"]
    assert read_journal(path)[-1].details == {"key": "k", "seconds": 0.0}
    assert told[1:] == ["supervisor.jsonl can be written again"]


def test_a_journal_whose_folder_was_removed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "out" / "supervisor.jsonl"
    path.parent.mkdir()
    journal = Journal(path)
    journal.write("run")
    shutil.rmtree(path.parent)
    journal.write("alive")
    assert events(path) == ["alive"]


def test_what_waits_is_bounded_and_what_is_dropped_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.jsonl"
    told: list[str] = []
    journal = Journal(path, told.append)
    journal.check()
    path.unlink()
    path.symlink_to("/dev/full")
    for _ in range(40):
        journal.write("exit", reason="x" * 100_000)
    path.unlink()
    journal.close()
    assert 1 << 20 <= path.stat().st_size < 2 << 20
    assert told[1:] == [f"supervisor.jsonl can be written again; it lacks {40 - len(events(path))} entries"]
    journal.close()
    assert len(told) == 2


def test_entries_beyond_what_may_wait_are_written_in_one_call(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    told: list[str] = []
    many = [Entry("admit", f"a/b/{number}", 1.0, {"reason": "x" * 1000}) for number in range(3000)]
    Journal(path, told.append).append(*many)
    assert [entry.process for entry in read_journal(path)] == [entry.process for entry in many]
    assert told == []


def test_a_journal_that_cannot_be_begun_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "supervisor.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        Journal(tmp_path / "supervisor.jsonl").check()


def test_a_pipe_in_the_place_of_a_journal_is_an_error_and_blocks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.jsonl"
    assert read_journal(path) == []
    os.mkfifo(path)
    with pytest.raises(OSError, match="is not a regular file"):
        read_journal(path)
    with pytest.raises(OSError, match="No such device"):
        Journal(path).check()


def test_a_long_journal_keeps_one_older_part(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.jsonl"
    journal = Journal(path, part_bytes=1000)
    for number in range(105):
        journal.write("exit", reason=str(number))
        assert sum(part.stat().st_size for part in tmp_path.iterdir()) < 2300
    assert sorted(part.name for part in tmp_path.iterdir()) == ["supervisor.jsonl", "supervisor.older.jsonl"]
    told = [int(entry.details["reason"]) for entry in read_journal(path)]
    assert told == list(range(105 - len(told), 105))
    assert len(told) > 10


def test_what_follows_a_line_that_a_crash_has_cut_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.jsonl"
    Journal(path).write("run")
    path.write_text(path.read_text() + '{"event": "sta')
    journal = Journal(path)
    journal.write("exit")
    journal.write("end")
    assert events(path) == ["run", "exit", "end"]
    Journal(path).check()
    assert path.read_text().count("\n") == 4


def test_of_signs_of_life_in_a_row_the_last_may_be_enough(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.jsonl"
    journal = Journal(path)
    for event in ("run", "alive", "alive", "exit", "alive", "alive", "alive"):
        journal.write(event, number=path.stat().st_size if path.exists() else 0)
    whole, sparse = read_journal(path), read_journal(path, sparse=True)
    assert sparse == [whole[index] for index in (0, 2, 3, 6)]
