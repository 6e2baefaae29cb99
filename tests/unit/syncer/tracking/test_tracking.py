"""Curves reach trackers that fail, hang or are killed: all of them, and none twice."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from diloco.spec.status.curves import CurveRow
from diloco.spec.status.syncer import TrackerStatus
from diloco.spec.tracking import TensorBoard, Tracker, WeightsAndBiases
from diloco.syncer.errors import SyncerError
from diloco.syncer.reporting.curves import CurveFiles
from diloco.syncer.tracking import tracking
from diloco.syncer.tracking.trackers import OpenTracker, TrackedRun, check_packages
from diloco.syncer.tracking.tracking import Tracking
from testbed.kind.waiting import wait_until

BOARD = Tracker(tensorboard=TensorBoard())
WANDB = Tracker(wandb=WeightsAndBiases(project="p"))


class Service:
    """A tracker that keeps what it is given, and fails when it is told to."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.away: str | None = None
        """What opening and logging raise."""
        self.hangs = threading.Event()
        self.hangs.set()
        self.knows = False
        """It says how far it is."""
        self.asked: list[int] = []
        """From which place it was opened."""
        self.closed: list[bool] = []

    def opened(self, _tracker: Tracker, _run: TrackedRun, after: int) -> OpenTracker:
        self._answer()
        return Opened(self, after)

    def _answer(self) -> None:
        self.hangs.wait()
        if self.away is not None:
            raise ConnectionError(self.away)


class Opened:
    def __init__(self, service: Service, after: int) -> None:
        self._service = service
        service.asked.append(after)
        self.last = max(service.steps, default=-1) if service.knows else None

    def log(self, step: int, unix_seconds: float, values: Mapping[str, float]) -> None:
        self._service._answer()
        assert unix_seconds == step
        assert values["job/eval_loss"] == step / 10
        self._service.steps.append(step)

    def flush(self) -> None:
        self._service._answer()

    def close(self, *, over: bool) -> None:
        self._service.closed.append(over)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.hangs.set()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(tracking, "_RETRY_SECONDS", 0.02)


def write(folder: Path, *steps: int, epoch: int = 1) -> None:
    for step in steps:
        row = CurveRow(
            epoch=epoch,
            unix_seconds=step,
            merged_tokens=step,
            inner_steps=step,
            tokens_per_second=1.0,
            eval_loss=step / 10,
        )
        CurveFiles(folder / "curves.jsonl", folder / "status.json").append(row)


def follow(folder: Path, service: Service) -> Tracking:
    made = Tracking((BOARD,), TrackedRun("job", "ab", folder), folder / "curves.jsonl", service.opened)
    made.start()
    return made


def one(followed: Tracking) -> TrackerStatus:
    (status,) = followed.status()
    return status


def test_a_tracker_that_is_away_is_told_and_gets_all_once_it_is_back(tmp_path: Path, service: Service) -> None:
    service.away = "no route\nto host"
    followed = follow(tmp_path, service)
    assert one(followed) == TrackerStatus(name="tensorboard", tokens=0)
    write(tmp_path, 10, 20)
    wait_until(lambda: one(followed).problem, "the problem")
    assert one(followed).problem == "ConnectionError: no route"
    write(tmp_path, 30)
    service.away = None
    wait_until(lambda: one(followed).tokens == 30, "the curves")
    assert one(followed).problem == ""
    service.away = "again"
    write(tmp_path, 40)
    wait_until(lambda: one(followed).problem, "the problem")
    service.away = None
    followed.close(over=True)
    assert (service.steps, service.closed) == ([10, 20, 30, 40], [False, True])


def test_a_restarted_syncer_writes_nothing_twice(tmp_path: Path, service: Service) -> None:
    write(tmp_path, 10, 20, 30)
    follow(tmp_path, service).close(over=False)
    # Its checkpoint was of 15 merged tokens.
    write(tmp_path, 20, 30, 40, epoch=2)
    follow(tmp_path, service).close(over=False)
    assert (service.steps, service.closed) == ([10, 20, 30, 40], [False, False])


def test_one_killed_before_it_wrote_its_place_asks_the_tracker(tmp_path: Path, service: Service) -> None:
    service.steps, service.knows = [10, 20], True
    write(tmp_path, 10, 20, 30)
    follow(tmp_path, service).close(over=False)
    assert service.steps == [10, 20, 30]


def test_what_a_tracker_lost_with_the_process_before_it_is_written_again(tmp_path: Path, service: Service) -> None:
    service.knows = True
    write(tmp_path, 10, 20, 30)
    follow(tmp_path, service).close(over=False)
    del service.steps[1:]  # the rest was under way
    follow(tmp_path, service).close(over=False)
    assert service.steps == [10, 20, 30]


def test_one_that_failed_is_opened_anew_from_its_place(tmp_path: Path, service: Service) -> None:
    write(tmp_path, 10, 20)
    followed = follow(tmp_path, service)
    wait_until(lambda: one(followed).tokens == 20, "the curves")
    service.away = "no space left"
    write(tmp_path, 30)
    wait_until(lambda: one(followed).problem, "the problem")
    service.away = None
    followed.close(over=False)
    assert (service.steps, set(service.asked)) == ([10, 20, 30], {-1, 20})


@pytest.mark.parametrize("content", ["", "{", '{"step": "far"}', "[" * 3000])
def test_a_damaged_place_is_passed_over(tmp_path: Path, service: Service, content: str) -> None:
    (tmp_path / "tracker-tensorboard.json").write_text(content)
    write(tmp_path, 10)
    follow(tmp_path, service).close(over=False)
    assert service.steps == [10]


def test_a_tracker_that_hangs_holds_up_neither_others_nor_the_end(
    tmp_path: Path, service: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(tracking, "end_without_waiting", lambda: ended.append("abruptly"))
    service.hangs.clear()
    other = Service()

    def opened(tracker: Tracker, run: TrackedRun, after: int) -> OpenTracker:
        return (other if tracker.wandb else service).opened(tracker, run, after)

    write(tmp_path, 10)
    followed = Tracking((BOARD, WANDB), TrackedRun("job", "ab", tmp_path), tmp_path / "curves.jsonl", opened)
    followed.start()
    wait_until(lambda: other.steps == [10], "the other one's curves")
    followed.close(over=False)
    assert "tensorboard: lacks the last 1 rows of the curves" in caplog.text
    assert ended == ["abruptly"]


def test_without_trackers_or_never_started_there_is_nothing_to_end(tmp_path: Path, service: Service) -> None:
    nothing = Tracking((), TrackedRun("job", "ab", tmp_path), tmp_path / "curves.jsonl")
    nothing.start()
    nothing.close(over=True)
    Tracking((BOARD,), TrackedRun("job", "ab", tmp_path), tmp_path / "c", service.opened).close(over=True)
    assert service.closed == []


def test_a_tracker_whose_package_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages((BOARD,))
    monkeypatch.setattr("diloco.syncer.tracking.trackers.find_spec", lambda _: None)
    told = r"spec\.training\.tracking\[0\]\.tensorboard: needs the package tensorboard; install it where the syncer"
    with pytest.raises(SyncerError, match=told):
        check_packages((BOARD,))
