"""A user's mistakes in a run, with real processes: one line that says what to change, and no traceback."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from diloco.learner.data import make_token_file
from diloco.spec.training import TextData
from tests.support.local_run import LocalRun, write_job

pytestmark = pytest.mark.processes


def the_one_line(job: Path, *flags: str) -> str:
    with LocalRun(job, *flags) as run:
        failed = run.ended()
    assert failed.returncode == 2, failed
    assert "Traceback" not in failed.stdout + failed.stderr
    (line,) = failed.stderr.splitlines()
    assert line.startswith("diloco: ")
    return str(line)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"training": {"batchSize": 60_000}}, ["spec.training"]),
        ({"sync": {"fragments": 400}}, ["sync.fragments", "400", "26"]),
        ({"model": {"entrypoint": "no.such:model"}}, ["no.such"]),
    ],
)
def test_a_manifest_that_does_not_fit_model_or_data(tmp_path: Path, spec: dict[str, Any], named: list[str]) -> None:
    line = the_one_line(write_job(tmp_path, 10_000, **spec))
    assert all(word in line for word in named), line


def test_data_that_is_empty_or_too_short(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    (tmp_path / "text.txt").write_text("too short")
    assert "has 0 sequences" in the_one_line(job)


def tokens_of(folder: Path) -> Path:
    """A token file."""
    write_job(folder)
    made = folder / "text.tokens"
    make_token_file(TextData(path=str(folder / "text.txt")), made)
    return made


def on_tokens(tokens: Path, vocabulary_size: int) -> Path:
    """A job that trains on a token file."""
    model = {"builtin": {"preset": "pico", "vocabularySize": vocabulary_size}}
    return write_job(tokens.parent, data={"tokens": {"path": str(tokens)}}, model=model)


def test_a_token_file_of_another_vocabulary(tmp_path: Path) -> None:
    line = the_one_line(on_tokens(tokens_of(tmp_path), 100))
    assert "100" in line
    assert "257" in line


def test_a_token_file_that_was_cut_off(tmp_path: Path) -> None:
    tokens = tokens_of(tmp_path)
    tokens.write_bytes(tokens.read_bytes()[:-100])
    assert str(tokens) in the_one_line(on_tokens(tokens, 300))


def test_a_busy_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert port in the_one_line(write_job(tmp_path), "--port", port)


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="needs a folder that not even root can write to")
def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    assert "/proc/1/out" in the_one_line(write_job(tmp_path), "--output", "/proc/1/out")


def test_an_output_that_is_a_file(tmp_path: Path) -> None:
    output = str(tmp_path / "text.txt")
    assert output in the_one_line(write_job(tmp_path), "--output", output)
