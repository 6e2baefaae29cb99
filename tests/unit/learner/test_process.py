"""A learner process without a syncer: options, mistakes, pages, and the thread that writes checkpoints."""

import functools
import logging
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diloco.core.time_spent import TimeSpent
from diloco.learner.checkpoint import CheckpointStore, CheckpointWriteError, LearnerCheckpoint
from diloco.learner.checkpoint_writer import CheckpointWriter
from diloco.learner.learner import Learner
from diloco.learner.mailboxes.outbox import FinishedStep
from diloco.learner.metrics import LearnerFigures, figure_pages
from diloco.learner.options import LearnerOptionError, LearnerOptions
from diloco.learner.process import run_learner
from diloco.learner.training.trainer import TrainerState
from diloco.learner.transfers import TransferCounts
from diloco.model import ModelError
from diloco.runtime.addresses import AddressError
from diloco.runtime.exits import EXIT_UNEXPECTED
from diloco.runtime.http import HttpServer
from diloco.spec import API_VERSION, KIND, DiLoCoJob, Metadata
from diloco.spec.training import InnerOptimizer, ModelSpec
from tests.support.small_job import small_job, write_text

A_STEP = FinishedStep(1, 64, 0.25, 0.0, 2.5, 4)


def options(folder: Path, **changes: object) -> LearnerOptions:
    job = DiLoCoJob(
        api_version=API_VERSION, kind=KIND, metadata=Metadata(name="small"), spec=small_job(write_text(folder))
    )
    plain = LearnerOptions(job, "here/cpu/0", "127.0.0.1:1", folder / "learner", threads=1)
    return replace(plain, **changes)  # type: ignore[arg-type]  # each test names one field


def of_muon(folder: Path) -> LearnerOptions:
    """The same job, with Muon."""
    plain = options(folder)
    training = plain.job.spec.training.model_copy(update={"optimizer": InnerOptimizer(kind="Muon")})
    spec = plain.job.spec.model_copy(update={"training": training})
    return replace(plain, job=plain.job.model_copy(update={"spec": spec}))


class TestOptions:
    @pytest.mark.parametrize(
        ("field", "value", "says"),
        [
            ("learner", "here/cpu/9", "--learner: 'here/cpu/9' is not in job small; use here/cpu/0, here/cpu/1"),
            ("speed", 0.0, "--speed, DILOCO_SPEED: 0 "),
            ("pod", "a/b", "--pod, DILOCO_POD: 'a/b' is not a pod's uid; use at most 64 plain characters"),
            ("pod", "p" * 65, f"--pod, DILOCO_POD: '{'p' * 64}' "),
            ("speed", 1.5, "--speed, DILOCO_SPEED: 1.5 "),
            ("speed", 1e-320, "--speed, DILOCO_SPEED: 9.99989e-321 is not a valid factor; use 0.001 to 1"),
            ("speed", float("nan"), "--speed, DILOCO_SPEED: nan "),
            ("threads", 0, "--threads: 0 "),
            ("threads", 1025, "--threads: 1025 is not allowed; use 1 to 1024"),
            ("hand_in_seconds", -1.0, "hand_in_seconds -1"),
        ],
    )
    def test_a_value_that_cannot_be_is_named(self, tmp_path: Path, field: str, value: object, says: str) -> None:
        with pytest.raises(LearnerOptionError, match=says):
            options(tmp_path, **{field: value})

    @pytest.mark.parametrize(("learners", "has"), [(4, "0, 1, 2, 3"), (5, "0, 1, 2, 3, ...")])
    def test_of_many_learners_four_are_named(self, tmp_path: Path, learners: int, has: str) -> None:
        plain = options(tmp_path)
        job = plain.job.model_copy(update={"spec": small_job(tmp_path / "text.txt", learners)})
        with pytest.raises(LearnerOptionError) as raised:
            replace(plain, job=job, learner="here/cpu/9")
        named = ", ".join(name if name == "..." else f"here/cpu/{name}" for name in has.split(", "))
        assert str(raised.value) == f"--learner: 'here/cpu/9' is not in job small; use {named}"

    def test_by_default_it_ends_with_its_job_and_hands_in_for_twenty_seconds(self, tmp_path: Path) -> None:
        plain = options(tmp_path)
        assert (plain.stay, plain.hand_in_seconds) == (False, 20.0)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("threads", 1), ("threads", 1024), ("hand_in_seconds", 0.0), ("speed", 0.001), ("speed", 1.0)],
    )
    def test_the_least_and_the_most_are_taken(self, tmp_path: Path, field: str, value: float) -> None:
        assert getattr(options(tmp_path, **{field: value}), field) == value

    @pytest.mark.parametrize("field", ["syncer_address", "http_address"])
    def test_an_address_is_read_at_once(self, tmp_path: Path, field: str) -> None:
        with pytest.raises(AddressError, match="HOST:PORT"):
            options(tmp_path, **{field: "nowhere"})

    def test_the_staleness_bound_follows_the_schedule_unless_it_is_given(self, tmp_path: Path) -> None:
        plain = options(tmp_path)
        assert plain.staleness_bound_steps == 4 * 6 + 2
        sync = plain.job.spec.sync.model_copy(update={"max_staleness_steps": 9})
        spec = plain.job.spec.model_copy(update={"sync": sync})
        given = replace(plain, job=plain.job.model_copy(update={"spec": spec}))
        assert given.staleness_bound_steps == 9


class TestMistakes:
    def _last_line(self, caplog: pytest.LogCaptureFixture) -> str:
        (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert record.exc_info is None
        return record.getMessage()

    def test_a_directory_that_cannot_be_one(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "learner").write_text("in the way")
        assert run_learner(options(tmp_path)) == 2
        assert str(tmp_path / "learner") in self._last_line(caplog)

    def test_a_device_that_is_not_there(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert run_learner(options(tmp_path, device="cuda:99")) == 2
        assert "cuda:99" in self._last_line(caplog)

    def test_a_torch_that_has_no_muon(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(torch.optim, "Muon")
        monkeypatch.setattr(torch, "__version__", "2.6.0+debian")
        assert run_learner(of_muon(tmp_path)) == 2
        assert self._last_line(caplog).startswith("training.optimizer.kind: Muon is not in torch 2.6.0+debian; use ")

    def test_a_model_that_ends_the_process_where_it_learns(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = options(tmp_path)
        model = ModelSpec(entrypoint="tests.support.entrypoints:model_that_exits_when_it_learns")
        sync = plain.job.spec.sync.model_copy(update={"fragments": 1})
        spec = plain.job.spec.model_copy(update={"model": model, "sync": sync})
        mine = replace(plain, job=plain.job.model_copy(update={"spec": spec}))
        monkeypatch.setattr(Learner, "run", lambda learner: learner._trainer.step(0.0))
        assert run_learner(mine) == EXIT_UNEXPECTED
        assert self._last_line(caplog) == "the job's model or data has called sys.exit(3) in training; it must return"

    def test_a_port_in_use(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with HttpServer("127.0.0.1:0", figure_pages(figures(None))) as server:
            assert run_learner(options(tmp_path, http_address=server.address)) == 2
        assert "cannot serve HTTP" in self._last_line(caplog)

    def test_it_is_alive_and_not_ready_while_it_loads(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with HttpServer("127.0.0.1:0", {}) as server:
            address = server.address
        seen: list[tuple[int, str]] = []

        def loads(*_: object) -> None:
            seen.extend(page_of(address, path) for path in ("/healthz", "/readyz"))
            raise ModelError("no model")

        monkeypatch.setattr("diloco.learner.process.Learner", loads)
        assert run_learner(options(tmp_path, http_address=address)) == 2
        doing = "creating the model and opening the data"
        (alive, health), ready = seen
        assert (alive, ready) == (200, (503, f"not serving yet: {doing}\n"))
        assert health.startswith(doing)


def page_of(address: str, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{page}", timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def figures(news: FinishedStep | None, *, joined: bool = True, over: bool = False) -> LearnerFigures:
    return LearnerFigures(
        spent=lambda: TimeSpent(training=12.5, paused=1.5),
        news=lambda: news,
        staleness_steps=lambda: 3,
        sessions=lambda: 2,
        joined=lambda: joined,
        over=lambda: over,
        counts=TransferCounts(bytes_pushed=100, bytes_pulled=400, pushes=1, pulls=4),
        batch_size=8,
    )


class TestPages:
    def test_metrics_say_where_the_time_went(self) -> None:
        news = FinishedStep(40, 2560, 0.25, 0.0, 2.5, 160)
        with HttpServer("127.0.0.1:0", figure_pages(figures(news))) as server:
            status, body = page_of(server.address, "/metrics")
        assert status == 200
        for line in (
            'diloco_learner_seconds_total{activity="training"} 12.5',
            'diloco_learner_seconds_total{activity="paused"} 1.5',
            'diloco_learner_payload_bytes_total{direction="pull"} 400.0',
            "diloco_learner_staleness_steps 3.0",
            "diloco_learner_batch_sequences 8.0",
            "diloco_learner_steps_total 40.0",
            "diloco_learner_loss 2.5",
        ):
            assert line in body.splitlines()

    @pytest.mark.parametrize(
        ("news", "joined", "status"),
        [(None, True, 503), (A_STEP, False, 503), (A_STEP, True, 200)],
    )
    def test_it_is_ready_once_it_is_in_and_trains(
        self, news: FinishedStep | None, status: int, *, joined: bool
    ) -> None:
        with HttpServer("127.0.0.1:0", figure_pages(figures(news, joined=joined))) as server:
            assert page_of(server.address, "/readyz")[0] == status
            assert page_of(server.address, "/healthz") == (200, "ok\n")

    def test_one_that_stays_after_the_end_of_the_job_is_ready(self) -> None:
        with HttpServer("127.0.0.1:0", figure_pages(figures(A_STEP, joined=False, over=True))) as server:
            assert page_of(server.address, "/readyz") == (200, "the job is over\n")


class Disk(CheckpointStore):
    """A disk that writes when it is allowed to, or fails."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.begun = threading.Event()
        self.saved: list[int] = []
        self.fails = False

    def save(self, checkpoint: LearnerCheckpoint) -> Path:
        self.begun.set()
        assert self.free.wait(60.0)
        if self.fails:
            raise CheckpointWriteError("checkpoint not written (no space left)")
        self.saved.append(checkpoint.state.steps)
        return Path()


def snapshot(steps: int) -> LearnerCheckpoint:
    return LearnerCheckpoint(TrainerState({}, 0, steps, 0, 0), {})


class TestCheckpointWriter:
    def test_a_checkpoint_that_comes_while_the_disk_is_busy_is_passed_over(self) -> None:
        disk = Disk()
        writer = CheckpointWriter(disk)
        thread = threading.Thread(target=writer.run)
        thread.start()
        assert writer.offer(lambda: snapshot(50))
        assert disk.begun.wait(60.0)
        assert not writer.offer(lambda: snapshot(100))
        disk.free.set()
        writer.finish(lambda: snapshot(120), timeout_seconds=60.0)
        assert writer.close(timeout_seconds=60.0)
        thread.join()
        assert disk.saved == [50, 120]

    def test_a_full_disk_is_said_once_and_training_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        disk = Disk()
        disk.free.set()
        disk.fails = True
        writer = CheckpointWriter(disk)
        thread = threading.Thread(target=writer.run)
        thread.start()
        for steps in (50, 100):
            writer.finish(functools.partial(snapshot, steps), timeout_seconds=60.0)
        assert writer.close(timeout_seconds=60.0)
        thread.join()
        assert [record.getMessage() for record in caplog.records] == [
            "checkpoint not written (no space left); training continues"
        ]
