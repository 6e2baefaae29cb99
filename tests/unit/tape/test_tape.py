"""The tape is read as it was written, and every way in which it can be changed is found."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from diloco.core.engine.actions import Note, NoteKind
from diloco.core.engine.events import LearnerAlive, TimerFired
from diloco.tape.keeper import TapeLimits
from diloco.tape.reader import (
    TapeEnd,
    TapeEntry,
    TapeError,
    TapeReader,
    Torn,
    _hash,
    header_line,
    last_line,
    read_header,
    seal,
)
from diloco.tape.segments import find_tapes
from diloco.tape.writer import TapeWriter
from tests.support.machine_limits import files_of_at_most
from tests.support.tape_headers import tape_header

HEADER = tape_header(
    job={"kind": "DiLoCoJob"},
    layout="ab" * 32,
    epoch=3,
    base_checkpoint="000001",
    record=True,
    engine={"versions": [0]},
)


def write(directory: Path, events: int = 5, limits: TapeLimits | None = None) -> None:
    seen = 0
    writer = TapeWriter(directory, HEADER, limits or TapeLimits(), lambda: {"events": seen})
    for seen in range(1, events + 1):
        index = seen - 1
        writer.append(index + 0.5, TimerFired(f"timer {index}"), [Note(NoteKind.REPEATED, f"reason {index}")])
        writer.flush()
    writer.close()


def read(directory: Path) -> list[TapeEntry | Torn]:
    (files,) = find_tapes(directory)
    return list(TapeReader(files))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path)
    (files,) = find_tapes(tmp_path)
    assert TapeReader(files).header == HEADER == read_header(files.segments[0])
    entries = read(tmp_path)
    path = tmp_path / "000003.jsonl"
    assert entries[1] == TapeEntry(path, 2, 1.5, TimerFired("timer 1"), (Note(NoteKind.REPEATED, "reason 1"),))
    assert len(entries) == 5


def test_a_header_that_is_a_pipe_or_nested_too_deeply_is_named(tmp_path: Path) -> None:
    path = tmp_path / "000003.jsonl"
    os.mkfifo(path)
    with pytest.raises(TapeError, match=r"000003\.jsonl seq 0: is not a regular file"):
        read_header(path)
    path.unlink()
    text = b'{"seq":0,"a":' + b"[" * 50_000
    path.write_bytes(text + b',"chain":"' + _hash("", text + b"}").encode() + b'"}\n')
    with pytest.raises(TapeError, match="recursion limit exceeded"):
        read_header(path)


def test_a_time_that_no_float_can_hold_is_named(tmp_path: Path) -> None:
    header, chain = header_line(HEADER)
    body = {"seq": 1, "now": 10**400, "event": {"type": "TimerFired", "name": "x"}, "actions": []}
    (tmp_path / "000003.jsonl").write_bytes(header + seal(body, chain)[0])
    with pytest.raises(TapeError, match="seq 1: int too large"):
        read(tmp_path)


SHORT = TapeLimits(segment_bytes=600)
"""A header's length counts four times, so a segment has about 1400 bytes."""


def test_a_tape_cut_by_size_reads_on_through_its_segments(tmp_path: Path) -> None:
    write(tmp_path, 40, SHORT)
    (files,) = find_tapes(tmp_path)
    assert len(files.segments) > 3
    assert files.segments[1].name == "000003.0001.jsonl"
    entries = read(tmp_path)
    assert [entry.event for entry in entries if isinstance(entry, TapeEntry)] == [
        TimerFired(f"timer {index}") for index in range(40)
    ]
    # The headers of further segments have numbers as well.
    assert entries[-1].seq == 40 + len(files.segments) - 1


def test_each_segment_begins_with_the_state_at_its_line(tmp_path: Path) -> None:
    write(tmp_path, 40, SHORT)
    (files,) = find_tapes(tmp_path)
    before = 0
    for number, path in enumerate(files.segments):
        header = read_header(path)
        assert header.state == ({"events": before} if number else {})
        assert header.engine == ({} if number else HEADER.engine)
        before += path.read_bytes().count(b"\n") - 1
    assert header.now == float(header.state["events"] - 0.5)


@pytest.mark.parametrize("number", [0, 1])
def test_a_header_with_another_seq_or_chain_than_it_says_is_found(tmp_path: Path, number: int) -> None:
    write(tmp_path, 40, SHORT)
    (tmp_path / "000003.jsonl").unlink()
    path = tmp_path / "000003.0001.jsonl"
    part = (b'"seq":', b'"after":"')[number]
    path.write_bytes(path.read_bytes().replace(part, part + b"1", 1))
    with pytest.raises(TapeError, match=r"0001\.jsonl seq \d+: the line, or one before it, was changed"):
        read(tmp_path)


def test_an_empty_first_segment_is_named(tmp_path: Path) -> None:
    (tmp_path / "000003.0002.jsonl").touch()
    with pytest.raises(TapeError, match=r"0002\.jsonl seq 0: the tape begins here, but no line .* is complete"):
        read(tmp_path)


def test_a_torn_last_line_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "000003.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    *whole, torn = read(tmp_path)
    assert [entry.seq for entry in whole] == [1, 2, 3, 4, 5]
    assert torn == Torn(path, 6)


def test_a_tape_ends_with_a_line_that_says_so_and_takes_no_more(tmp_path: Path) -> None:
    write(tmp_path)
    (files,) = find_tapes(tmp_path)
    reader = TapeReader(files)
    assert (len(list(reader)), reader.end, reader.seq) == (5, TapeEnd(), 6)
    writer = TapeWriter(tmp_path, replace(HEADER, epoch=4), TapeLimits())
    writer.end("of the model")
    writer.append(1.0, TimerFired("late"), [])
    writer.close()
    after = TapeReader(find_tapes(tmp_path)[1])
    assert list(after) == []
    assert after.end == TapeEnd("of the model")
    assert (after.header.previous, after.header.previous_seq) == ("000003", 6)
    assert after.header.previous_chain == reader.chain == last_line(files.segments[0])[1]


def test_a_line_after_the_end_is_named(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "000003.jsonl"
    _, chain = last_line(path)
    path.write_bytes(path.read_bytes() + seal({"seq": 7, "event": {}}, chain)[0])
    with pytest.raises(TapeError, match="seq 7: the tape continues after the line that ends it"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "seq"),
    [
        (lambda lines: [lines[0].replace(b"000001", b"000002"), *lines[1:]], 0),
        (lambda lines: [*lines[:3], lines[3].replace(b"timer 2", b"timer 9"), *lines[4:]], 3),
        (lambda lines: [*lines[:3], *lines[4:]], 3),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], 3),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], 3),
        (lambda lines: [lines[0], b"{}\n", *lines[1:]], 1),
        (lambda lines: [*lines, lines[-1]], 7),
    ],
    ids=["header", "changed", "dropped", "swapped", "doubled", "inserted", "appended"],
)
def test_a_changed_tape_is_found_and_the_line_is_named(tmp_path: Path, change: object, seq: int) -> None:
    write(tmp_path)
    path = tmp_path / "000003.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))  # type: ignore[operator]
    with pytest.raises(TapeError, match=f"000003.jsonl seq {seq}: ") as caught:
        read(tmp_path)
    assert (caught.value.file, caught.value.seq) == (path, seq)


def test_lines_wait_for_a_full_disk_and_none_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = TapeWriter(tmp_path, HEADER, TapeLimits())
    with files_of_at_most(1500):
        for index in range(30):
            writer.append(float(index), LearnerAlive("a/b/0", index), [])
            writer.flush()
    assert "File too large" in writer.problem
    assert "its lines are kept in memory" in caplog.text
    writer.close()
    assert writer.problem == ""
    assert [entry.seq for entry in read(tmp_path)] == list(range(1, 31))


def test_a_disk_that_is_full_for_too_long_ends_the_tape(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = TapeWriter(tmp_path, HEADER, TapeLimits(waiting_bytes=2000))
    with files_of_at_most(1500):
        for index in range(50):
            writer.append(float(index), LearnerAlive("a/b/0", index), [])
            writer.flush()
    writer.append(50.0, LearnerAlive("a/b/0", 50), [])
    writer.close()
    assert writer.ended
    assert "the tape ended at line" in writer.problem
    assert "it could not be written for too long" in caplog.text
    *_, last = read(tmp_path)
    assert isinstance(last, Torn)
