"""A whole syncer in this process, from its start to its exit code: pages, learners over gRPC, signals, mistakes."""

import contextlib
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diloco.local.report.live import LivePage
from diloco.runtime.journal import read_journal
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_OK, EXIT_UNEXPECTED, STOP_SIGNALS
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.errors import SyncerError
from diloco.syncer.options import SyncerOptions
from diloco.syncer.process import run_syncer
from tests.support.http_pages import page
from tests.support.scripted_learner import ScriptedLearner
from tests.support.syncer_process import SmallJob

pytestmark = pytest.mark.usefixtures("one_torch_thread")

WAIT_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _own_signal_handlers() -> Iterator[None]:
    """A signal that a syncer does not take fails the test, and does not end the tests."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def untaken(number: int, _: object) -> None:
        raise AssertionError(f"signal {number} was not taken")

    for number in before:
        signal.signal(number, untaken)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Announced(logging.Handler):
    """Waits for a line of the syncer's log."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.event.set()


@contextlib.contextmanager
def announced(text: str) -> Iterator[threading.Event]:
    handler, logger = Announced(text), logging.getLogger("diloco.syncer")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler.event
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def options(folder: Path, job: SmallJob, **changes: Any) -> SyncerOptions:
    return SyncerOptions(job.job, folder / "syncer", threads=1, **changes)


def lives(chosen: SyncerOptions, during: Callable[[dict[str, Any]], None], number: int = signal.SIGTERM) -> int:
    """Run a syncer, do this while it serves, then send it a signal; its exit code."""
    failed: list[BaseException] = []
    with announced("serving job") as serving:

        def meanwhile() -> None:
            try:
                assert serving.wait(WAIT_SECONDS)
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    during(json.loads((chosen.directory / "endpoint.json").read_text()))
            except BaseException as error:  # noqa: BLE001  # raised again in the test's thread
                failed.append(error)
            finally:
                os.kill(os.getpid(), number)

        thread = threading.Thread(target=meanwhile)
        thread.start()
        try:
            code = run_syncer(chosen)
        finally:
            serving.set()
            thread.join()
    for error in failed:
        raise error
    return code


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_it_serves_until_a_signal_and_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    threads = set(threading.enumerate())
    seen: list[dict[str, Any]] = []

    def during(endpoint: dict[str, Any]) -> None:
        seen.append(endpoint)
        assert page(endpoint["http"], "/readyz") == (200, "serving\n")
        assert page(endpoint["http"], "/healthz")[0] == 200
        assert json.loads(page(endpoint["http"], "/status")[1])["job"] == "small"

    assert lives(options(tmp_path, SmallJob(tmp_path)), during, number) == EXIT_OK
    (endpoint,) = seen
    assert (endpoint["pid"], endpoint["epoch"]) == (os.getpid(), "1")
    assert not (tmp_path / "syncer" / "endpoint.json").exists()
    assert [one.name for one in set(threading.enumerate()) - threads if not one.daemon] == []


def test_its_journal_and_its_page_tell_of_sessions(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    chosen = options(tmp_path, job, page=LivePage(tmp_path / "syncer"))

    def told() -> list[tuple[str, str]]:
        return [(entry.event, entry.process) for entry in read_journal(tmp_path / "syncer" / "journal.jsonl")]

    def during(endpoint: dict[str, Any]) -> None:
        with ScriptedLearner(endpoint["sync"], job, "here/cpu/0") as learner:
            learner.begin()
            until = time.monotonic() + WAIT_SECONDS
            while ("note", "here/cpu/0") not in told():
                assert time.monotonic() < until
                time.sleep(0.05)
            status, shown = page(endpoint["http"], "/page")
        assert status == 200
        assert "here/cpu/0 training" in shown

    assert lives(chosen, during) == EXIT_OK
    assert told()[:2] == [("serves", "syncer"), ("admit", "here/cpu/0")]


def test_a_learner_trains_with_it_and_its_bytes_are_counted(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)

    def during(endpoint: dict[str, Any]) -> None:
        with ScriptedLearner(endpoint["sync"], job, "here/cpu/0") as learner:
            learner.begin()
            learner.push(learner.wanted())
            (here,) = json.loads(page(endpoint["http"], "/status")[1])["bytes_by_region"]
            assert here["down"]["bulk"] > 4 * job.layout.numel
            assert here["up"]["bulk"] > 4 * min(fragment.numel for fragment in job.layout.fragments)

    assert lives(options(tmp_path, job), during) == EXIT_OK


def test_it_serves_without_its_endpoint_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen = options(tmp_path, SmallJob(tmp_path))
    (chosen.directory / "endpoint.json" / "in the way").mkdir(parents=True)
    assert lives(chosen, lambda _: None) == EXIT_OK
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [f"cannot write {chosen.directory / 'endpoint.json'}: Is a directory"]


def test_it_is_alive_while_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    http = free_address()
    seen: list[tuple[int, str]] = []

    def loads(*_: object) -> None:
        seen.extend(page(http, path) for path in ("/healthz", "/readyz", "/page"))
        raise SyncerError("seen enough", EXIT_UNEXPECTED)

    monkeypatch.setattr("diloco.syncer.process.prepare", loads)
    assert run_syncer(options(tmp_path, SmallJob(tmp_path), http=http)) == EXIT_UNEXPECTED
    assert [status for status, _ in seen] == [200, 503, 503]
    assert all("creating the model or reading the newest checkpoint" in text for _, text in seen)


def test_its_pages_say_that_it_waits_for_another_syncer(tmp_path: Path) -> None:
    chosen = options(tmp_path, SmallJob(tmp_path), http=free_address())
    seen: list[tuple[int, str]] = []
    other = SyncerDirectory(chosen.directory)

    def release() -> None:
        with other:
            waiting.wait(WAIT_SECONDS)
            seen.append(page(chosen.http, "/readyz"))

    with announced("waiting for it to end") as waiting:
        thread = threading.Thread(target=release)
        thread.start()
        code = lives(chosen, lambda _: None)
        thread.join()
    assert code == EXIT_OK
    assert seen == [(503, "not serving yet: waiting for another syncer that uses the directory\n")]


def test_its_pages_say_that_it_writes_the_first_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    http = free_address()
    seen: list[tuple[int, str]] = []

    def writes(*_: object) -> str:
        seen.extend(page(http, path) for path in ("/healthz", "/readyz"))
        raise OSError

    monkeypatch.setattr("diloco.syncer.prepare.write_checkpoint", writes)
    assert run_syncer(options(tmp_path, SmallJob(tmp_path), http=http)) == EXIT_UNEXPECTED
    assert [status for status, _ in seen] == [200, 503]
    assert all("writing the first checkpoint" in text for _, text in seen)


def test_the_lock_is_waited_for_while_the_other_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "syncer/checkpoints/000007/00000.safetensors"
    file.parent.mkdir(parents=True)
    with file.open("wb") as sparse:
        sparse.truncate(20 * 10**9)
    seen: list[float] = []

    def locks(_root: Path, patience_seconds: float, _waiting: object) -> SyncerDirectory:
        seen.append(patience_seconds)
        raise SyncerError("seen enough", EXIT_UNEXPECTED)

    monkeypatch.setattr("diloco.syncer.process.SyncerDirectory", locks)
    assert run_syncer(options(tmp_path, SmallJob(tmp_path))) == EXIT_UNEXPECTED
    assert seen == [400.0]


@pytest.mark.parametrize("field", ["listen", "http"])
def test_a_busy_port_is_one_line(tmp_path: Path, field: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run_syncer(options(tmp_path, SmallJob(tmp_path), **{field: address})) == EXIT_BAD_INPUT
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert address in record.getMessage()
    assert record.exc_info is None


def test_a_disk_that_fails_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen = options(tmp_path, SmallJob(tmp_path))
    chosen.directory.mkdir()
    (chosen.directory / "epoch").mkdir()
    assert run_syncer(chosen) == EXIT_UNEXPECTED
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage().startswith(f"{chosen.directory}: cannot be used (")
    assert record.exc_info is None
