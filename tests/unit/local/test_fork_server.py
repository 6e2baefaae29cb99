"""Processes that are forked for a run: they are as if started, and where they cannot be forked they are started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from diloco.local import fork_server
from diloco.local.child import Child
from diloco.local.fork_server import Forked, ForkServer
from diloco.runtime.process import forking
from testbed import fork_server as of_tests
from testbed.kind.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="Linux only")]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    """One that has loaded."""
    monkeypatch.setattr(subprocess, "Popen", of_tests.Popen)
    monkeypatch.setattr(fork_server, "_LOADING_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(fork_server, "_ANSWER_SECONDS", WAIT_SECONDS)
    one = ForkServer({"OMP_NUM_THREADS": "1"})
    wait_until(lambda: not one.loading(), "it has loaded")
    yield one
    one.end()


def waiting(folder: Path, server: ForkServer, name: str = "syncer") -> Child:
    """A syncer that waits to read its manifest."""
    manifest = folder / f"{name}.yaml"
    os.mkfifo(manifest)
    arguments = ["syncer", "--job", str(manifest), "--directory", str(folder)]
    return Child(arguments, folder / f"{name}.log", {"OF_THE_CHILD": "1"}, server)


def killed(child: Child) -> int | None:
    child.signal(signal.SIGKILL)
    child.wait()
    return child.poll()


def test_a_forked_process_is_as_if_started(server: ForkServer, tmp_path: Path) -> None:
    child = waiting(tmp_path, server)
    pid = child.start()
    assert isinstance(child._process, Forked)
    process = psutil.Process(pid)
    assert process.ppid() == os.getpid()
    assert process.cmdline()[: len(child._command)] == child._command
    assert (os.getpgid(pid), os.getsid(pid)) == (pid, os.getsid(0))
    files = [Path(f"/proc/{pid}/fd/{number}").readlink() for number in range(3)]
    assert files == [Path(os.devnull), tmp_path / "syncer.log", tmp_path / "syncer.log"]
    assert child.running
    wait_until(lambda: process.num_threads() == 1 and process.status() != psutil.STATUS_RUNNING, "it waits")
    child.signal(signal.SIGTERM)
    child.wait()
    assert child.poll() == 0
    assert killed(child) == 0


def test_its_exit_code_and_its_last_error_are_told(server: ForkServer, tmp_path: Path) -> None:
    arguments = ["syncer", "--job", "missing.yaml", "--directory", str(tmp_path)]
    child = Child(arguments, tmp_path / "one.log", {}, server)
    child.start()
    child.wait()
    assert child.poll() == 2
    assert child.last_line().startswith("missing.yaml: ")


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_is_started_although_the_server_died_or_hangs(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: signal.Signals
) -> None:
    before, after = waiting(tmp_path, server, "before"), waiting(tmp_path, server, "after")
    before.start()
    os.kill(server._process.pid, fault)
    monkeypatch.setattr(fork_server, "_ANSWER_SECONDS", 0.1)
    after.start()
    assert not isinstance(after._process, Forked)
    assert server._process.poll() == -signal.SIGKILL
    assert before.running
    assert [killed(before), killed(after)] == [-signal.SIGKILL, -signal.SIGKILL]


def test_until_it_has_loaded_processes_wait_and_then_do_not(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server._loaded = False
    assert server.loading()
    monkeypatch.setattr(server, "_until", 0.0)
    assert not server.loading()
    child = waiting(tmp_path, server)
    child.start()
    assert not isinstance(child._process, Forked)
    killed(child)


def test_a_process_that_nobody_waits_for_any_more_ends(tmp_path: Path) -> None:
    here, there = forking.ends()
    order = forking.Order([sys.executable, "-m", "one"], dict(os.environ), str(tmp_path), 0)
    pid = os.fork()
    if not pid:
        try:
            here.close()
            forking.become(order, [there.fileno()])
        finally:
            os._exit(9)
    there.close()
    assert int(here.recv(64)) == pid
    here.close()
    assert os.waitpid(pid, 0)[1] == 0
