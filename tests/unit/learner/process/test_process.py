"""A learner process without a syncer: options, mistakes, and pages."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diloco.core.account.time_spent import TimeSpent
from diloco.learner.exchange.transfers import TransferCounts
from diloco.learner.learner import Learner
from diloco.learner.metrics import LearnerFigures, figure_pages
from diloco.learner.options import LearnerOptionError, only_visible
from diloco.learner.process.learner_process import run_learner
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import ModelError
from diloco.runtime.addresses import AddressError
from diloco.runtime.http import HttpServer
from diloco.runtime.process.exits import EXIT_UNEXPECTED
from diloco.wire.messages import StepReport
from tests.support.http_pages import page
from tests.support.small_learner import learner_options

A_STEP = StepReport(0, 1, 64, 0.25, 2.5, 4)
TRAINING = {"tokens": 1000, "sequenceLength": 16, "batchSize": 4}


class TestOptions:
    @pytest.mark.parametrize(
        ("field", "value", "says"),
        [
            ("learner", "here/cpu/9", "--learner: 'here/cpu/9' is not in job small; use here/cpu/0, here/cpu/1$"),
            ("speed", 0.0, "--speed, DILOCO_SPEED: 0 "),
            ("pod", "a/b", "--pod, DILOCO_POD: 'a/b' is not a pod's uid; use at most 64 plain characters"),
            ("pod", "p" * 65, f"--pod, DILOCO_POD: '{'p' * 64}' "),
            ("speed", 1.5, "--speed, DILOCO_SPEED: 1.5 "),
            ("speed", 1e-320, "--speed, DILOCO_SPEED: 9.99989e-321 is not a valid factor; use 0.001 to 1"),
            ("speed", float("nan"), "--speed, DILOCO_SPEED: nan "),
            ("threads", 0, "--threads: 0 "),
            ("threads", 1025, "--threads: 1025 is not allowed; use 1 to 1024"),
            ("hand_in_seconds", -1.0, "hand_in_seconds -1"),
            ("device", "cpu,cpu", r"--device: cpu,cpu is not possible for 1 process; use"),
        ],
    )
    def test_a_value_that_cannot_be_is_named(self, tmp_path: Path, field: str, value: object, says: str) -> None:
        with pytest.raises(LearnerOptionError, match=says):
            learner_options(tmp_path, **{field: value})

    def test_of_many_learners_four_are_named(self, tmp_path: Path) -> None:
        regions = [{"name": "here", "pools": [{"name": "cpu", "learners": 5}]}]
        with pytest.raises(LearnerOptionError, match=r"use here/cpu/0, here/cpu/1, here/cpu/2, here/cpu/3, \.\.\.$"):
            learner_options(tmp_path, {"regions": regions}, learner="here/cpu/9")

    @pytest.mark.parametrize(
        ("field", "value"),
        [("threads", 1), ("threads", 1024), ("hand_in_seconds", 0.0), ("speed", 0.001), ("speed", 1.0)],
    )
    def test_the_least_and_the_most_are_taken(self, tmp_path: Path, field: str, value: float) -> None:
        assert getattr(learner_options(tmp_path, **{field: value}), field) == value

    @pytest.mark.parametrize("device", ["cpu,cpu,cpu", "cpu,cuda:0", "cuda:1", "cuda:1,cuda:1"])
    def test_each_process_has_a_device_of_one_kind(self, tmp_path: Path, device: str) -> None:
        with pytest.raises(LearnerOptionError, match=f"--device: {device} is .*; use cpu, cuda, or 2 of one kind"):
            learner_options(tmp_path, processes=2, device=device)
        assert learner_options(tmp_path, processes=2, device="cuda:0,cuda:3").device_of(1) == "cuda:3"

    @pytest.mark.parametrize(
        ("device", "visible", "only"),
        [
            ("cuda:2,cuda:3", None, "2,3"),
            ("cuda:3,cuda:0", None, "3,0"),
            ("cuda:1", "4, 5", "5"),
            ("cuda:2,cuda:1", "GPU-a,GPU-b,GPU-c", "GPU-c,GPU-b"),
            ("cuda:2,cuda:3", "4,5,6", None),
            ("cuda:0", "", ""),
            ("auto", "4,5", None),
            ("cuda", None, None),
            ("cpu,cpu", None, None),
        ],
    )
    def test_a_loop_sees_its_own_devices_alone(self, device: str, visible: str | None, only: str | None) -> None:
        assert only_visible(device, visible) == only

    @pytest.mark.parametrize("field", ["syncer_address", "http_address"])
    def test_an_address_is_read_at_once(self, tmp_path: Path, field: str) -> None:
        with pytest.raises(AddressError, match="HOST:PORT"):
            learner_options(tmp_path, **{field: "nowhere"})

    def test_the_staleness_bound_follows_the_schedule_unless_it_is_given(self, tmp_path: Path) -> None:
        assert learner_options(tmp_path).staleness_bound_steps == 4 * 6 + 2
        sync = {"fragments": 6, "interval": 6, "maxStalenessSteps": 9}
        assert learner_options(tmp_path, {"sync": sync}).staleness_bound_steps == 9


class TestMistakes:
    def _last_line(self, caplog: pytest.LogCaptureFixture) -> str:
        (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert record.exc_info is None
        return record.getMessage()

    @pytest.mark.parametrize(
        ("spec", "changes", "says"),
        [
            ({}, {"directory": Path("/dev/null")}, "/dev/null: "),
            ({}, {"device": "cuda:99"}, "cuda:99"),
            ({}, {"http_address": "192.0.2.1:1"}, "cannot serve HTTP at 192.0.2.1:1: "),
            (
                {
                    "model": {"entrypoint": "tests.support.entrypoints:dropping_model"},
                    "training": TRAINING | {"optimizer": {"type": "Muon"}},
                    "sync": {"fragments": 1, "interval": 6},
                },
                {},
                "training.optimizer.type: Muon",
            ),
        ],
    )
    def test_it_is_one_line(
        self,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        *,
        spec: dict[str, Any],
        changes: dict[str, Any],
        says: str,
    ) -> None:
        assert run_learner(learner_options(tmp_path, spec, **changes)) == 2
        assert says in self._last_line(caplog)

    def test_a_model_that_ends_the_process_where_it_learns(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = {"entrypoint": "tests.support.entrypoints:model_that_exits_when_it_learns"}
        mine = {"model": model, "sync": {"fragments": 1, "interval": 6}}

        def step(learner: Learner) -> None:
            trainer = learner._trainer
            assert isinstance(trainer, InnerTrainer)
            trainer._data.sampler.supply = lambda first, _: first  # no syncer deals here
            trainer.step(0.0)

        monkeypatch.setattr(Learner, "run", step)
        assert run_learner(learner_options(tmp_path, mine)) == EXIT_UNEXPECTED
        assert self._last_line(caplog) == "the job's model or data has called sys.exit(3) in training; it must return"

    def test_it_is_alive_and_not_ready_while_it_loads(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with HttpServer("127.0.0.1:0", {}) as server:
            address = server.address
        seen: list[tuple[int, str]] = []

        def loads(*_: object) -> None:
            seen.extend(page(address, path) for path in ("/healthz", "/readyz"))
            raise ModelError("no model")

        monkeypatch.setattr("diloco.learner.process.learner_process.Learner", loads)
        assert run_learner(learner_options(tmp_path, http_address=address)) == 2
        doing = "creating the model and opening the data"
        (alive, health), ready = seen
        assert (alive, ready) == (200, (503, f"not serving yet: {doing}\n"))
        assert health.startswith(doing)


def figures(news: StepReport | None, *, joined: bool = True, over: bool = False) -> LearnerFigures:
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
        news = StepReport(0, 40, 2560, 0.25, 2.5, 160)
        with HttpServer("127.0.0.1:0", figure_pages(figures(news))) as server:
            status, body = page(server.address, "/metrics")
        assert status == 200
        for line in (
            'diloco_learner_seconds_total{activity="training"} 12.5',
            'diloco_learner_seconds_total{activity="paused"} 1.5',
            'diloco_learner_payload_bytes_total{direction="pull"} 400.0',
            "diloco_learner_staleness_steps 3.0",
            "diloco_learner_batch_sequences 8.0",
            "diloco_learner_steps 40.0",
            "diloco_learner_loss 2.5",
        ):
            assert line in body.splitlines()

    @pytest.mark.parametrize("processes", [1, 4])
    def test_a_learner_of_several_processes_says_how_many(self, processes: int) -> None:
        with HttpServer("127.0.0.1:0", figure_pages(replace(figures(None), processes=processes))) as server:
            _, body = page(server.address, "/metrics")
        assert (f"diloco_learner_processes {processes}.0" in body.splitlines()) == (processes > 1)

    @pytest.mark.parametrize(
        ("news", "joined", "status"),
        [(None, True, 503), (A_STEP, False, 503), (A_STEP, True, 200)],
    )
    def test_it_is_ready_once_it_is_in_and_trains(self, news: StepReport | None, status: int, *, joined: bool) -> None:
        with HttpServer("127.0.0.1:0", figure_pages(figures(news, joined=joined))) as server:
            assert page(server.address, "/readyz")[0] == status
            assert page(server.address, "/healthz") == (200, "ok\n")
