"""A process that waits to become another: it does, and where it cannot, the other is started all the same."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from diloco.local import standby
from diloco.local.child import Child
from diloco.local.standby import LEAST_BYTES, Standby
from testbed import fork_server

pytestmark = pytest.mark.processes


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standby]:
    """One that has loaded."""
    monkeypatch.setattr(subprocess, "Popen", fork_server.Popen)
    monkeypatch.setattr(standby, "_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=LEAST_BYTES))
    one = Standby({"OMP_NUM_THREADS": "1"})
    one.keep()
    assert one._kept is not None
    _, way = one._kept
    way.settimeout(60.0)
    assert way.recv(1, socket.MSG_PEEK)
    way.settimeout(0.0)
    yield one
    one.end()


def process_of(kept: Standby) -> psutil.Process:
    assert kept._kept is not None
    return psutil.Process(kept._kept[0].pid)


def waiting(kept: Standby, folder: Path, **environment: str) -> Child:
    """A syncer that waits to read its manifest."""
    os.mkfifo(folder / "job.yaml")
    arguments = ["syncer", "--job", str(folder / "job.yaml"), "--directory", str(folder)]
    return Child(arguments, folder / "syncer.log", environment, kept)


def test_it_becomes_the_process_as_if_started_then(kept: Standby, tmp_path: Path) -> None:
    waits, child = process_of(kept), waiting(kept, tmp_path, OMP_NUM_THREADS="1")
    assert child.start() == waits.pid == os.getpgid(waits.pid)
    assert waits.cmdline()[: len(child._command)] == child._command
    assert Path(f"/proc/{waits.pid}/fd/2").readlink() == tmp_path / "syncer.log"
    child.signal(signal.SIGTERM)
    child.wait()
    assert child.poll() == 0
    kept.keep()
    assert process_of(kept).pid != waits.pid


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_is_started_although_it_died_or_hangs(kept: Standby, tmp_path: Path, fault: signal.Signals) -> None:
    waits, child = process_of(kept), waiting(kept, tmp_path, OMP_NUM_THREADS="1")
    waits.send_signal(fault)
    assert child.start() != waits.pid
    assert not waits.is_running()
    assert child.running
    child.signal(signal.SIGKILL)
    child.wait()


@pytest.mark.parametrize("threads", ["1", "2"], ids=["it still loads", "it loaded for another number of threads"])
def test_what_cannot_be_of_use_now_is_left_alone(kept: Standby, tmp_path: Path, threads: str) -> None:
    waits, child = process_of(kept), waiting(kept, tmp_path, OMP_NUM_THREADS=threads)
    assert kept._kept is not None
    assert kept._kept[1].recv(1)  # as if it had not said so
    assert child.start() != waits.pid
    assert process_of(kept) == waits
    child.signal(signal.SIGKILL)
    child.wait()


def test_without_much_memory_none_is_kept(kept: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=LEAST_BYTES - 1))
    waits = process_of(kept)
    kept.end()
    kept.keep()
    assert (waits.is_running(), kept._kept) == (False, None)
