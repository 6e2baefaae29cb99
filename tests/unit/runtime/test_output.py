import io
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from diloco.runtime import output as output_module
from diloco.runtime.output import LastingOutput, escaped


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The reader's descriptor and the writer's stream."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        yield reader, stream


def test_a_closed_pipe_costs_the_text_and_is_told_once(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    told: list[str] = []
    output = LastingOutput(stream, told.append)
    output.write("read\n")
    assert os.read(reader, 100) == b"read\n"
    os.close(reader)
    output.write("lost\n")
    output.write("lost too\n")
    assert (told, output.lost) == (["Broken pipe"], 2)


def test_a_reader_that_stops_costs_the_text_until_it_reads_again(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_module, "PATIENCE_SECONDS", 0.01)
    reader, stream = pipe
    told: list[str] = []
    output = LastingOutput(stream, told.append)
    while not told:
        output.write("x" * 999 + "\n")
    lost = output.lost
    output.write("lost too\n")
    assert (told, output.lost) == (["Its reader has stopped reading"], lost + 1)
    while select.select([reader], [], [], 0)[0]:
        os.read(reader, 1 << 16)
    output.write("on a line of its own\n")
    assert os.read(reader, 100) == b"\non a line of its own\n"
    assert output.lost == lost + 1


def test_a_full_disk_costs_the_text_and_leaves_nothing_to_fail_later() -> None:
    told: list[str] = []
    with Path("/dev/full").open("w") as full:
        output = LastingOutput(full, told.append)
        output.write("x" * 100_000)
    assert told == ["No space left on device"]


def test_a_stream_that_was_closed_costs_the_text() -> None:
    stream = io.StringIO()
    output = LastingOutput(stream)
    stream.close()
    output.write("lost\n")
    assert output.lost == 1


def test_what_is_not_printable_stays_on_one_line() -> None:
    assert escaped("a\nb\x1b[2J\u2028c\u202e") == "a\\nb\\x1b[2J\\u2028c\\u202e"
    assert escaped("Größe, 大きさ") == "Größe, 大きさ"
