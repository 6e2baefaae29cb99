import io
import json
from collections.abc import Sequence

import pytest
from rich.console import Console
from rich.text import Text

from diloco.cli.jobs.top import FrameWriter, JsonFrames, LiveFrames, NewLines, follow
from diloco.cli.live.cluster_access import AwayError, ClusterError
from diloco.cli.live.frames import Frame
from diloco.runtime.process.exits import EXIT_JOB_FAILED, EXIT_OK


class Played:
    """A source that gives what it was told to, one after the other."""

    def __init__(self, looks: Sequence[Frame | BaseException]) -> None:
        self._looks = list(looks)

    def read(self, rows: int | None) -> Frame:
        del rows
        look = self._looks.pop(0)
        if isinstance(look, BaseException):
            raise look
        return look


def frame(*lines: str, over: bool = False, exit_code: int = EXIT_OK) -> Frame:
    return Frame(Text("\n".join(lines)), lines, {"lines": lines}, over=over, exit_code=exit_code)


def played(looks: Sequence[Frame | BaseException], screen: FrameWriter, *, once: bool = False) -> int:
    return follow(Played(looks), screen, rows=None, once=once, wait=lambda: None)


def pipe() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=40, force_terminal=False), file


def test_in_a_pipe_a_line_comes_when_it_is_new() -> None:
    console, file = pipe()
    looks = [frame("news", "10%"), frame("10%"), frame("20%"), frame("done", over=True)]
    assert played(looks, NewLines(console)) == EXIT_OK
    assert file.getvalue().splitlines() == ["news", "10%", "20%", "done"]


def test_a_failed_job_gives_the_exit_code_except_of_a_single_look() -> None:
    failed = frame("bad", over=True, exit_code=EXIT_JOB_FAILED)
    assert played([failed], NewLines(pipe()[0])) == EXIT_JOB_FAILED
    assert played([failed], NewLines(pipe()[0]), once=True) == EXIT_OK


def test_a_server_that_is_away_for_a_while_is_remarked_upon_once() -> None:
    console, file = pipe()
    away = AwayError("no API server answers")
    assert played([frame("10%"), away, away, frame("20%", over=True)], NewLines(console)) == EXIT_OK
    assert file.getvalue().splitlines() == ["10%", "no API server answers; retrying", "20%"]


def test_a_server_that_was_never_there_ends_it() -> None:
    with pytest.raises(AwayError):
        played([AwayError("no API server answers")], NewLines(pipe()[0]))


def test_a_job_that_is_gone_ends_it() -> None:
    with pytest.raises(ClusterError, match="no job"):
        played([frame("10%"), ClusterError("no job mine")], NewLines(pipe()[0]))


def test_ctrl_c_is_how_one_leaves() -> None:
    assert played([frame("10%"), KeyboardInterrupt()], NewLines(pipe()[0])) == EXIT_OK


def test_a_program_gets_a_document_a_line_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert played([frame("a"), AwayError("no answer"), frame("b", over=True)], JsonFrames()) == EXIT_OK
    captured = capsys.readouterr()
    assert [json.loads(line)["lines"] for line in captured.out.splitlines()] == [["a"], ["b"]]
    assert captured.err == "diloco: no answer; retrying\n"


def test_a_terminal_keeps_the_last_frame() -> None:
    file = io.StringIO()
    console = Console(file=file, width=40, height=10, force_terminal=True, legacy_windows=False)
    assert played([frame("10%"), frame("the end", over=True)], LiveFrames(console)) == EXIT_OK
    assert "the end" in file.getvalue().rsplit("10%", 1)[1]
