"""SIGTERM in the first moments of a process. A container's first process gets it only if it has a handler."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from diloco.runtime.process.exits import EXIT_INTERRUPTED, STOP_SIGNALS

pytestmark = pytest.mark.processes

WAIT_SECONDS = 60.0


@contextmanager
def started(manifest: Path, command: list[str], *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that hangs while it reads its manifest, long before its own handlers are installed."""
    os.mkfifo(manifest)
    arguments = [*before, sys.executable, "-m", "diloco.cli.entry", *command, "--job", str(manifest)]
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    try:
        with manifest.open("wb"):  # returns when the process opens the other end
            yield process
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)


def commands(folder: Path) -> dict[str, list[str]]:
    return {
        "learner": ["learner", "--learner", "a/b/0", "--syncer", "127.0.0.1:1", "--directory", str(folder / "d")],
        "syncer": ["syncer", "--directory", str(folder / "d"), "--listen", "127.0.0.1:0"],
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("name", ["learner", "syncer"])
def test_it_ends_at_once_and_in_order(tmp_path: Path, name: str, number: int) -> None:
    with started(tmp_path / "job.yaml", commands(tmp_path)[name]) as process:
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == 0
    assert not (tmp_path / "d").exists()


def test_a_process_that_its_learner_ends_ignores_signals(tmp_path: Path) -> None:
    numbers = ("--rank", "1", "--ranks", "2", "--processes", "2", "--threads", "1", "--parent", str(os.getpid()))
    places = ("--store", str(tmp_path / "store"), "--directory", str(tmp_path / "d"))
    with started(
        tmp_path / "job.yaml", ["rank", "--learner", "a/b/0", "--device", "cpu", *numbers, *places]
    ) as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    assert all(ignored >> (number - 1) & 1 for number in STOP_SIGNALS)


def test_ctrl_c_in_the_middle_of_an_import_leaves_no_traceback(tmp_path: Path) -> None:
    """``rich`` is imported by every command; here its import hangs."""
    os.mkfifo(tmp_path / "entered")
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text(
        f"import time\nopen({str(tmp_path / 'entered')!r}, 'w').close()\ntime.sleep({WAIT_SECONDS})\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "diloco.cli.entry", "--version"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    with (tmp_path / "entered").open():  # returns when the import has begun
        process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, complaints) == (EXIT_INTERRUPTED, "")


def test_it_does_so_as_the_first_process_of_a_container(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    can = [unshare or "", "--pid", "--fork", "true"]
    if unshare is None or subprocess.run(can, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("a PID namespace of its own needs unshare and the right to use it")
    inside = (unshare, "--pid", "--fork", "--kill-child")
    with started(tmp_path / "job.yaml", commands(tmp_path)["learner"], *inside) as outer:
        (first,) = psutil.Process(outer.pid).children()
        os.kill(first.pid, signal.SIGTERM)
        assert outer.wait(WAIT_SECONDS) == 0
