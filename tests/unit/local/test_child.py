"""A supervised process: the reason of its end."""

import logging
import signal
from pathlib import Path

import pytest

from diloco.local.child import Child
from diloco.runtime import cache
from diloco.runtime.last_error import VARIABLE, read_last_error, write_last_error
from diloco.runtime.log import set_up_logging
from testbed.kind.waiting import wait_until


def ended(arguments: list[str], log: Path) -> Child:
    child = Child(arguments, log, {})
    child.start()
    child.wait()
    return child


def test_a_childs_error_is_told_without_the_logs_format(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "syncer.log"
    child = ended(["syncer", "--job", "missing.yaml", "--directory", str(tmp_path)], log)
    assert child.poll() == 2
    assert child.last_line().startswith("missing.yaml: ")
    assert "diloco: missing.yaml: " in log.read_text(encoding="utf-8")


def test_the_processes_of_a_run_share_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    program = f"import os\nprint(os.environ['{cache.VARIABLE}'], flush=True)\nos._exit(0)\n"
    (tmp_path / "sitecustomize.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ended(["--version"], tmp_path / "one.log").last_line() == str(tmp_path / ".cache" / "diloco")


def test_an_error_of_an_earlier_start_is_not_told(tmp_path: Path) -> None:
    log = tmp_path / "syncer.log"
    (tmp_path / "syncer.error").write_text("an earlier one", encoding="utf-8")
    log.write_text("earlier lines\n", encoding="utf-8")
    child = ended(["--version"], log)
    assert "an earlier one" not in child.last_line()
    assert "earlier lines" not in child.last_line()


def test_without_an_error_the_logs_last_line_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "print('Killed\\n\\n', flush=True)\nimport os\nos._exit(9)\n"
    (tmp_path / "sitecustomize.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ended(["--version"], tmp_path / "one.log").last_line() == "Killed"


OF_TWO_PROCESSES = """
import os, signal
both = {signal.SIGTERM, signal.SIGRTMIN}
signal.pthread_sigmask(signal.SIG_BLOCK, both)
other = os.fork()
if not other:
    os._exit(signal.sigwait(both))
print("ready", flush=True)
signal.sigwait({signal.SIGTERM})
os.kill(other, signal.SIGRTMIN)
told = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
print("the other was told", signal.Signals(told).name, flush=True)
os._exit(0)
"""


def test_a_request_to_end_reaches_a_learners_first_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(OF_TWO_PROCESSES, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = Child(["--version"], tmp_path / "one.log", {})
    child.start()
    try:
        wait_until(lambda: child.last_line() == "ready", "it waits")
        child.signal(signal.SIGTERM)
        child.wait()
    finally:
        child.signal(signal.SIGKILL)
    assert child.last_line() == "the other was told SIGRTMIN"


def test_logged_errors_are_written_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.error"
    monkeypatch.setenv(VARIABLE, str(path))
    before = logging.getLogger().handlers[:]
    try:
        set_up_logging(process="one")
        logging.getLogger("x").warning("not this")
        logging.getLogger("x").error("no %s", "such\x1bfile")
    finally:
        logging.getLogger().handlers[:] = before
    assert read_last_error(path) == "no such\\x1bfile"
    write_last_error("x" * 10_000)
    assert len(path.read_text(encoding="utf-8")) == 4096


def test_an_error_that_cannot_be_written_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing" / "one.error"))
    write_last_error("no such file")
    assert read_last_error(tmp_path / "missing" / "one.error") == ""


def test_a_long_log_is_moved_aside_and_its_process_writes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diloco.local.child.LOG_BYTES", 1000)
    log, older = tmp_path / "one.log", tmp_path / "one.older.log"
    log.write_text("x" * 1000, encoding="utf-8")
    child = Child(["--version"], log, {})
    child.bound_log()
    assert not older.exists()
    with log.open("ab", buffering=0) as of_the_process:
        of_the_process.write(b"first\n")
        child.bound_log()
        assert older.read_text(encoding="utf-8") == "x" * 1000 + "first\n"
        assert log.read_bytes() == b""
        of_the_process.write(b"second\n")
        assert log.read_bytes() == b"second\n"
        of_the_process.write(b"y" * 1000)
        child.bound_log()
        assert older.read_bytes() == b"second\n" + b"y" * 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.log", "one.older.log"]


def test_without_room_a_log_is_emptied_once_it_is_twice_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diloco.local.child.LOG_BYTES", 1000)
    log = tmp_path / "one.log"
    child = Child(["--version"], log, {})
    log.write_bytes(b"x" * 1500)
    (tmp_path / ".one.older.log.part").mkdir()  # so nothing can be copied
    child.bound_log()
    assert log.stat().st_size == 1500
    log.write_bytes(b"x" * 2100)
    child.bound_log()
    assert log.stat().st_size == 0
