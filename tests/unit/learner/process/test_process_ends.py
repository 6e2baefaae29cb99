"""The process around a learner: threads, signals, pages, exit codes; the learner is scripted."""

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from diloco.learner.data.source import DataStoppedError
from diloco.learner.exchange.orders import Ending, EndKind, Orders, Wakeup
from diloco.learner.options import LearnerOptions
from diloco.learner.process.learner_process import run_learner
from diloco.learner.training.devices.torch_threads import set_torch_threads, start_worker
from diloco.runtime.http import HttpServer, Response, Route
from diloco.runtime.process.exits import EXIT_OK, EXIT_REFUSED, EXIT_UNEXPECTED, STOP_SIGNALS
from tests.support.small_learner import learner_options

LINES = {
    EndKind.FINISHED: ["the job is over: why"],
    EndKind.STOPPED: [],
    EndKind.REFUSED: ["the syncer refuses this learner: why"],
}


class Life:
    """Stands for ``Learner``: it ends as the test sets, and records its environment."""

    ending = Ending(EndKind.FINISHED, "enough")
    checkpoint_written = True

    def __init__(self, options: LearnerOptions, orders: Orders, wakeup: Wakeup, own: None, unit: None) -> None:
        del options, wakeup, own, unit
        self._orders = orders
        self.calls.append("made")

    calls: list[str]
    switch_seconds: float
    torch_threads: int
    stopped_by: Ending | None

    def pages(self) -> dict[str, Route]:
        self.calls.append("pages")
        return {"/": lambda: Response.text("pages\n")}

    def run(self) -> Ending:
        self.calls.append("run")
        kind = type(self)
        kind.switch_seconds, kind.torch_threads = sys.getswitchinterval(), torch.get_num_threads()
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGTERM)
        kind.stopped_by = self._orders.ending()
        return self.ending

    def stay(self) -> None:
        self.calls.append("stay")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> type[Life]:
    class Mine(Life):
        calls: list[str] = []  # noqa: RUF012  # of one test

    monkeypatch.setattr("diloco.learner.process.learner_process.Learner", Mine)
    return Mine


@pytest.mark.parametrize("stay", [True, False])
@pytest.mark.parametrize(
    ("kind", "kept", "code"),
    [
        (EndKind.FINISHED, True, EXIT_OK),
        (EndKind.FINISHED, False, EXIT_OK),
        (EndKind.STOPPED, True, EXIT_OK),
        (EndKind.STOPPED, False, EXIT_UNEXPECTED),
        (EndKind.REFUSED, True, EXIT_REFUSED),
    ],
)
def test_how_it_ends_is_told_and_its_exit_code_says_so(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    life: type[Life],
    kind: EndKind,
    code: int,
    *,
    kept: bool,
    stay: bool,
) -> None:
    caplog.set_level("INFO")
    life.ending, life.checkpoint_written = Ending(kind, "why"), kept
    assert run_learner(learner_options(tmp_path, threads=3, stay=stay)) == code
    stays = stay and kind is EndKind.FINISHED
    assert life.calls == ["made", "run", *["stay"] * stays, "close"]
    assert [record.getMessage() for record in caplog.records] == LINES[kind]


def test_a_stop_before_its_data_is_ready_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise DataStoppedError("stopped early")

    caplog.set_level("INFO")
    monkeypatch.setattr("diloco.learner.process.learner_process.Learner", stopped)
    assert run_learner(learner_options(tmp_path, threads=3)) == EXIT_OK
    assert [record.getMessage() for record in caplog.records] == ["stopped early"]


def test_its_pages_take_the_place_of_those_of_loading(tmp_path: Path, life: type[Life]) -> None:
    with HttpServer("127.0.0.1:0", {}) as server:
        address = server.address
    run_learner(learner_options(tmp_path, http_address=address))
    assert life.calls == ["made", "pages", "run", "close"]


def test_signals_stop_it_and_everything_is_as_before_when_it_has_ended(tmp_path: Path, life: type[Life]) -> None:
    sys.setswitchinterval(0.005)  # Python's own
    before = ([signal.getsignal(number) for number in STOP_SIGNALS], sys.getswitchinterval())
    run_learner(learner_options(tmp_path, threads=3))
    assert life.stopped_by == Ending(EndKind.STOPPED, "SIGTERM")
    assert life.switch_seconds == pytest.approx(0.0005)
    assert life.torch_threads == 3
    assert ([signal.getsignal(number) for number in STOP_SIGNALS], sys.getswitchinterval()) == before


def test_beside_the_main_thread_it_leaves_signals_alone(tmp_path: Path, life: type[Life]) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run_learner(learner_options(tmp_path, threads=3))))
    thread.start()
    thread.join()
    assert (codes, life.stopped_by) == ([EXIT_OK], None)


def test_the_inner_step_gets_its_torch_threads_and_a_worker_one() -> None:
    seen: list[int] = []
    assert set_torch_threads(3) == torch.get_num_threads() == 3
    assert set_torch_threads(None) == 3
    worker = start_worker("a", lambda: seen.append(torch.get_num_threads()), lambda error: pytest.fail(str(error)))
    worker.join()
    assert (seen, torch.get_num_threads(), worker.daemon) == ([1], 3, True)


def test_the_error_of_a_worker_is_handed_over() -> None:
    failures: list[BaseException] = []
    failure = ZeroDivisionError("in a worker")

    def fails() -> None:
        raise failure

    start_worker("a", fails, failures.append).join()
    assert failures == [failure]
