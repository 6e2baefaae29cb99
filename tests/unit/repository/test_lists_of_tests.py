"""What `make test` prints last: what was skipped, and what passed only when it was run again."""

import os
import subprocess
import sys
from pathlib import Path

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


def run_in(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "conftest.py").write_bytes(CONFTEST.read_bytes())
    (folder / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "--reruns=1", *options, "-p", "no:cacheprovider", "test_them.py"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


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
