"""What `make test` prints last: what was skipped, took far too long, or passed only when it was run again."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import lists

REPOSITORY = Path(__file__).parents[3]
CONFTEST = REPOSITORY / "tests" / "conftest.py"
TESTS = """
import time
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def late():
    if not Path("prepared").exists():
        Path("prepared").touch()
        raise OSError("not yet")

def test_that_needs_it(late):
    pass

def test_that_passes_later():
    found = Path("found").exists()
    Path("found").touch()
    assert found, "first time"

def test_that_fails():
    assert 3 == 4

def test_that_is_skipped():
    pytest.skip("no such device")

@pytest.mark.timeout(1)
def test_that_hangs_when_run_again():
    again = Path("hung").exists()
    Path("hung").touch()
    assert again
    time.sleep(60)
"""


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with the committed lists, both empty."""
    for name, empty in {"DURATIONS": "{}", "KNOWN_RERUNS": "[]"}.items():
        path = tmp_path / f"{name}.json"
        path.write_text(empty)
        monkeypatch.setattr(lists, name, path)
    return tmp_path


class Reporter:
    """Stands for pytest's: what tests took, and those that passed only when run again."""

    def __init__(self, seconds: dict[str, float], rerun: tuple[str, ...] = ()) -> None:
        passed = [Report(test, taken) for test, taken in seconds.items()]
        self.stats = {"passed": passed, "rerun": [Report(test, 1.0) for test in rerun]}


@dataclass
class Report:
    nodeid: str
    duration: float
    when: str = "call"
    longrepr: str = "AssertionError"


def told(reporter: Reporter) -> dict[str, list[str]]:
    return lists.lists(reporter)  # type: ignore[arg-type] # what is read of it


@pytest.mark.usefixtures("files")
def test_what_takes_three_times_its_recorded_time_is_listed() -> None:
    def of(*seconds: float) -> dict[str, float]:
        return {f"tests/unit/conftest.py::{name}": taken for name, taken in zip("abcd", seconds, strict=True)}

    lists.record({"tests/deleted.py::a": 50.0})
    lists.record(of(50.0, 80.0, 30.0, 2.0))
    assert list(lists.recorded().values()) == [50.0, 80.0, 30.0]
    assert told(Reporter({"tests/cluster/test_a.py::a": 100.0}))["slow"] == [], "no test beside it was recorded"
    # The machine is busy, or slower.
    assert told(Reporter(of(100.0, 180.0, 60.0, 64.0)))["slow"] == []
    (line,) = told(Reporter(of(50.0, 260.0, 30.0, 2.0)))["slow"]
    assert line.startswith("  tests/unit/conftest.py::b: 260 s, 80 s recorded")


def test_what_passed_only_when_run_again_fails_the_second_time(files: Path) -> None:
    reporter = Reporter({"a": 1.0, "b": 1.0}, rerun=("a", "b"))
    assert [line.strip() for line in told(reporter)["rerun"]] == [
        "a (call): AssertionError",
        "b (call): AssertionError",
    ]
    assert lists.known_again(reporter) == []  # type: ignore[arg-type]
    (files / "KNOWN_RERUNS.json").write_text(json.dumps([{"test": "b", "date": "2026-01-31", "known": "a busy link"}]))
    assert lists.known_again(reporter) == ["b"]  # type: ignore[arg-type]


def run_in(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "conftest.py").write_bytes(CONFTEST.read_bytes())
    (folder / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "--reruns=1", *options, "-p", "no:cacheprovider", "test_them.py"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_what_was_skipped_or_rerun_is_listed_last_and_in_files(tmp_path: Path) -> None:
    ended = run_in(tmp_path, "--rerun-to=rerun.txt", "--skipped-to=skipped.txt", "-n", "1")
    assert ended.returncode == 1, ended.stdout
    assert "2 failed, 2 passed, 1 skipped, 4 rerun" in ended.stdout
    skipped = ["  test_them.py::test_that_is_skipped: no such device"]
    rerun = [
        "  test_them.py::test_that_needs_it (setup): test_them.py:10: OSError: not yet",
        "  test_them.py::test_that_passes_later (call): test_them.py:18: AssertionError: first time",
    ]
    assert (tmp_path / "skipped.txt").read_text().splitlines() == skipped
    assert (tmp_path / "rerun.txt").read_text().splitlines() == rerun
    titles = ["Skipped (1):", *skipped, "Failed once, and passed when run again (2):", *rerun]
    assert ended.stdout.splitlines()[-len(titles) :] == titles
    assert '>           raise OSError("not yet")' in ended.stdout
    assert "Timeout (>1.0s) from pytest-timeout" in ended.stdout
