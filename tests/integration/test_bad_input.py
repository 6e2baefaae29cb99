"""A user's mistakes in a run, with real processes: one line that says what to change, and no traceback."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco.learner.data import make_token_file
from diloco.spec.training import TextData
from testbed import fork_server

pytestmark = pytest.mark.processes

JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: wrong}
spec:
  model: {builtin: {preset: pico, vocabularySize: 300}}
  data: {text: {path: TEXT}}
  training: {tokens: 10_000, sequenceLength: 32, batchSize: 4, evaluation: {sequences: 8}}
  sync: {fragments: 6, interval: 6}
  regions: [{name: here, pools: [{name: cpu, learners: 1}]}]
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n} of many, {n * n % 97}\n" for n in range(3000)))
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("TEXT", str(text)))
    return path


def run(job: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "diloco.cli.entry", "run", str(job), *flags]
    if "--output" not in flags:
        command += ["--output", str(job.parent / "out")]
    return fork_server.run(command, 240)


def the_one_line(failed: subprocess.CompletedProcess[str]) -> str:
    assert failed.returncode == 2, failed
    assert "Traceback" not in failed.stdout + failed.stderr
    (line,) = failed.stderr.splitlines()
    assert line.startswith("diloco: ")
    return line


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("text: {path: TEXT}", "text: {path: /nowhere/at/all}", ["/nowhere/at/all"]),
        ("batchSize: 4", "batchSize: 60000, seed: 1", ["spec.training"]),
        ("fragments: 6", "fragments: 400", ["sync.fragments", "400", "26"]),
        ("preset: pico, vocabularySize: 300", "preset: pico, vocabularySize: 100", ["vocabularySize", "100", "257"]),
        ("model: {builtin: {preset: pico, vocabularySize: 300}}", "model: {entrypoint: 'no.such:model'}", ["no.such"]),
    ],
)
def test_a_manifest_that_does_not_fit_model_or_data(job: Path, right: str, wrong: str, named: list[str]) -> None:
    text = job.read_text()
    right = right.replace("TEXT", str(job.parent / "text.txt"))
    assert right in text
    job.write_text(text.replace(right, wrong))
    line = the_one_line(run(job))
    assert all(word in line for word in named), line


def test_data_that_is_empty_or_too_short(job: Path) -> None:
    (job.parent / "text.txt").write_text("too short")
    line = the_one_line(run(job))
    assert "tokens" in line


def test_a_token_file_of_another_vocabulary(job: Path) -> None:
    tokens = job.parent / "text.tokens"
    make_token_file(TextData(path=str(job.parent / "text.txt")), tokens)
    text = job.read_text().replace(f"text: {{path: {job.parent / 'text.txt'}}}", f"tokens: {{path: {tokens}}}")
    job.write_text(text.replace("vocabularySize: 300", "vocabularySize: 100"))
    line = the_one_line(run(job))
    assert "100" in line
    assert "257" in line


def test_a_token_file_that_was_cut_off(job: Path) -> None:
    tokens = job.parent / "text.tokens"
    make_token_file(TextData(path=str(job.parent / "text.txt")), tokens)
    tokens.write_bytes(tokens.read_bytes()[:-100])
    job.write_text(job.read_text().replace(f"text: {{path: {job.parent / 'text.txt'}}}", f"tokens: {{path: {tokens}}}"))
    assert str(tokens) in the_one_line(run(job))


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def test_a_busy_port(job: Path, busy_port: int) -> None:
    assert str(busy_port) in the_one_line(run(job, "--port", str(busy_port)))


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="needs a folder that not even root can write to")
def test_an_output_that_cannot_be_written(job: Path) -> None:
    assert "/proc/1/out" in the_one_line(run(job, "--output", "/proc/1/out"))


def test_an_output_that_is_a_file(job: Path) -> None:
    output = job.parent / "text.txt"
    assert str(output) in the_one_line(run(job, "--output", str(output)))
