"""Closed segments are compressed and the oldest deleted, and a crash at any moment loses none of the rest."""

import gzip
import shutil
from pathlib import Path

import pytest

from diloco.core.engine.events import TimerFired
from diloco.tape.keeper import TapeKeeper, TapeLimits
from diloco.tape.reader import TapeEntry, TapeError, TapeReader, Torn
from diloco.tape.segments import compressed_path, find_tapes
from diloco.tape.writer import TapeWriter
from tests.support.machine_limits import files_of_at_most
from tests.support.tape_headers import tape_header

ALL = TapeLimits(segment_bytes=2000, kept_bytes=None)
FEW = TapeLimits(segment_bytes=2000, kept_bytes=8000)


def write(directory: Path, epoch: int = 1, events: int = 100) -> Path:
    """A tape of several segments that no keeper has seen; returns its last segment."""
    writer = TapeWriter(directory, tape_header(epoch=epoch), ALL, lambda: {"events": 1})
    for index in range(events):
        writer.append(float(index), TimerFired(f"timer {index}"), [])
        writer.flush()
    writer.close()
    return writer.current


def names(directory: Path) -> list[str]:
    return [entry.event.name for entry in entries(directory) if isinstance(entry.event, TimerFired)]


def entries(directory: Path) -> list[TapeEntry]:
    return [entry for tape in find_tapes(directory) for entry in TapeReader(tape) if isinstance(entry, TapeEntry)]


def total(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_closed_segments_are_compressed_and_read_the_same(tmp_path: Path) -> None:
    current = write(tmp_path)
    before, size = names(tmp_path), total(tmp_path)
    TapeKeeper(tmp_path, ALL).tidy(current, 2000)
    *closed, last = (path.name for path in find_tapes(tmp_path)[0].segments)
    assert len(closed) > 3
    assert all(name.endswith(".jsonl.gz") for name in closed)
    assert last == current.name
    assert names(tmp_path) == before
    assert total(tmp_path) < size / 2


def test_the_oldest_segments_of_all_epochs_go_first(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        current = write(tmp_path, epoch)
    whole = entries(tmp_path)
    TapeKeeper(tmp_path, TapeLimits(2000, 7000)).tidy(current, 2000)
    assert total(tmp_path) <= 7000
    left = entries(tmp_path)
    assert 0 < len(left) < len(whole)
    assert [entry.seq for entry in left] == [entry.seq for entry in whole[-len(left) :]]
    assert current.exists()


def test_a_tape_that_is_written_for_long_stays_within_its_bound(tmp_path: Path) -> None:
    writer = TapeWriter(tmp_path, tape_header(), FEW, lambda: {"events": 1}, TapeKeeper(tmp_path, FEW))
    for index in range(3000):
        writer.append(float(index), TimerFired(f"timer {index}"), [])
        writer.flush()
    writer.close()
    TapeKeeper(tmp_path, FEW).tidy(writer.current, 2000)
    assert total(tmp_path) <= 8000
    left = names(tmp_path)
    assert left == [f"timer {index}" for index in range(3000 - len(left), 3000)]
    assert int(writer.current.name.split(".")[1]) > 50


@pytest.mark.parametrize("left_over", ["part", "both", "both and part"])
def test_a_compression_that_was_interrupted_is_redone(tmp_path: Path, left_over: str) -> None:
    current = write(tmp_path)
    before = names(tmp_path)
    first = tmp_path / "000001.jsonl"
    if "part" in left_over:
        (tmp_path / ".000001.jsonl.gz.part").write_bytes(gzip.compress(first.read_bytes())[:-7])
    if "both" in left_over:
        compressed_path(first).write_bytes(gzip.compress(first.read_bytes()))
    assert names(tmp_path) == before
    keeper = TapeKeeper(tmp_path, ALL)
    assert names(tmp_path) == before
    keeper.tidy(current, 2000)
    assert names(tmp_path) == before
    assert not list(tmp_path.glob(".*"))
    assert not first.exists()


def test_a_segment_without_a_complete_line_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    current = write(tmp_path)
    before = names(tmp_path)
    nothing = tmp_path / "000001.9999.jsonl"
    shutil.move(current, tmp_path / "kept")
    nothing.write_bytes(b'{"seq":')
    TapeKeeper(tmp_path, ALL)
    assert not nothing.exists()
    shutil.move(tmp_path / "kept", current)
    TapeKeeper(tmp_path, ALL)
    assert names(tmp_path) == before


def test_a_line_cut_off_at_an_epochs_end_is_told_when_compressed(tmp_path: Path) -> None:
    last = write(tmp_path)
    last.write_bytes(last.read_bytes()[:-10])
    TapeKeeper(tmp_path, ALL).tidy(tmp_path / "000002.jsonl", 2000)
    assert not last.exists()
    *_, torn = TapeReader(find_tapes(tmp_path)[0])
    assert isinstance(torn, Torn)
    assert torn.file == compressed_path(last)


@pytest.mark.parametrize("damage", ["cut", "changed", "not compressed"])
def test_a_damaged_compressed_segment_is_named(tmp_path: Path, damage: str) -> None:
    TapeKeeper(tmp_path, ALL).tidy(write(tmp_path), 2000)
    path = tmp_path / "000001.0001.jsonl.gz"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[-20:]
    elif damage == "changed":
        content[len(content) // 2] ^= 0xFF
    else:
        content[:4] = b"text"
    path.write_bytes(content)
    with pytest.raises(TapeError, match=r"000001\.0001\.jsonl\.gz seq \d+: the .* (cut off or )?was changed"):
        names(tmp_path)


def test_without_room_segments_stay_as_they_are_and_are_compressed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    current = write(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    keeper = TapeKeeper(tmp_path, ALL)
    with files_of_at_most(100):
        keeper.tidy(current, 2000)
        keeper.tidy(current, 2000)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert caplog.text.count("cannot tidy the tapes: [Errno 27] File too large") == 1
    keeper.tidy(current, 2000)
    assert compressed_path(tmp_path / "000001.jsonl").exists()


def test_a_directory_that_cannot_be_read_costs_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "000001.jsonl").mkdir()
    keeper = TapeKeeper(tmp_path, ALL)
    keeper.tidy(tmp_path / "000002.jsonl", 2000)
    assert "cannot delete leftovers of tapes" in caplog.text
    keeper.close()


def test_a_segment_that_is_compressed_while_it_is_read_is_read(tmp_path: Path) -> None:
    current = write(tmp_path)
    before = names(tmp_path)
    (files,) = find_tapes(tmp_path)
    reader = iter(TapeReader(files))
    first = next(reader)
    TapeKeeper(tmp_path, ALL).tidy(current, 2000)
    rest = [entry for entry in (first, *reader) if isinstance(entry, TapeEntry)]
    assert len(rest) == len(before)


def test_compressing_stops_when_the_keeper_is_closed(tmp_path: Path) -> None:
    current = write(tmp_path)
    keeper = TapeKeeper(tmp_path, ALL)
    keeper.close()
    before = sorted(tmp_path.iterdir())
    keeper.tidy(current, 2000)
    assert sorted(tmp_path.iterdir()) == before
