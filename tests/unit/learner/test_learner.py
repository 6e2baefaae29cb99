"""How a learner's parts are built, started, and ended; parts that would connect or wait are scripted."""

import errno
import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.data.source import DataStoppedError
from diloco.learner.exchange.link import Position
from diloco.learner.exchange.orders import Ending, EndKind, Membership, Orders
from diloco.learner.exchange.residuals import Residual
from diloco.learner.learner import Learner
from diloco.learner.options import LearnerOptions
from tests.support.hand_clock import clock_of
from tests.support.inner_loop import ScriptedBell
from tests.support.small_job import write_text
from tests.support.small_learner import learner_options

NOW = Membership("1", 7)
STOPPED = Ending(EndKind.STOPPED, "SIGTERM")


class Part:
    """Stands for a part: its calls are recorded, take time, and return what the test sets."""

    def __init__(self, name: str, scene: "Scene", **returns: object) -> None:
        self._name = name
        self._scene = scene
        self._returns = returns

    def __getattr__(self, method: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            name = f"{self._name}.{method}"
            plain = [one for one in arguments if not callable(one)]
            self._scene.calls.append((name, *plain))
            self._scene.clock.now += self._scene.takes.get(name, 0.0)
            return self._returns.get(method)

        return call


class Scene:
    """A learner on a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.clock = clock_of("learner", monkeypatch)
        self.calls: list[tuple[object, ...]] = []
        self.takes: dict[str, float] = {}
        """Seconds, by call."""
        self.wakeup = ScriptedBell()
        self.orders = Orders(self.wakeup)
        monkeypatch.setattr("diloco.learner.learner.start_worker", self._start)

    def _start(self, name: str, _body: object, _on_failure: object) -> Part:
        self.calls.append(("start", name))
        return Part("thread", self)

    def options(self, *, hand_in_seconds: float = 20.0, **sync: Any) -> LearnerOptions:
        spec = {"sync": {"fragments": 6, "interval": 6} | sync}
        return learner_options(self.folder, spec, device="cpu", hand_in_seconds=hand_in_seconds)

    def learner(self, **changes: Any) -> Learner:
        return Learner(self.options(**changes), self.orders, self.wakeup)

    def scripted(
        self,
        ending: Ending = STOPPED,
        *,
        membership: Membership | None = NOW,
        steps: int = 40,
        idle: bool = True,
        told: bool = True,
        closed: bool = True,
        begun: bool = True,
        due: tuple[int, ...] = (),
        written_steps: int | None = 40,
        **changes: Any,
    ) -> Learner:
        """A learner whose loop ends with ``ending``."""
        learner: Any = self.learner(**changes)
        learner.loop = Part("loop", self, run=ending)
        learner._link = Part("link", self, current=membership)
        learner._link.sessions = 2
        learner._writer = Part("writer", self, close=closed, finish=begun, longest_seconds=90.0)
        learner._writer.written_steps, learner._writer.problem = written_steps, "no room"
        learner._exchange = Part("exchange", self, hand_in=idle, leave=told, pending=due)
        learner._exchange.push_bytes_per_second = None
        learner._trainer.steps = steps
        return cast("Learner", learner)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_it_joins_after_what_it_needs_for_training_has_begun(scene: Scene) -> None:
    scene.scripted(Ending(EndKind.REFUSED, "no")).run()
    assert scene.calls == [("start", "checkpoint"), ("exchange.start",), ("loop.run",), ("writer.close",)]


@pytest.mark.parametrize(("lease_seconds", "alive_seconds"), [(8.0, 2.0), (20.0, 5.0), (60.0, 5.0)])
def test_it_sends_four_heartbeats_a_lease_and_one_at_least_every_5_seconds(
    scene: Scene, lease_seconds: float, alive_seconds: float
) -> None:
    assert scene.learner(lease_seconds=lease_seconds)._shared.outbox._alive_seconds == alive_seconds


@pytest.mark.parametrize(
    ("compression", "error_feedback", "feeds_back"),
    [("TopK", True, True), ("Int4", True, True), ("Int8", True, True), ("Int8", False, False), ("BF16", True, False)],
)
def test_it_goes_on_from_its_checkpoint_and_keeps_what_that_had(
    scene: Scene, compression: str, *, error_feedback: bool, feeds_back: bool
) -> None:
    changes = {"compression": compression, "errorFeedback": error_feedback}
    before = scene.learner(**changes)
    state = replace(before._snapshot().state, steps=7, tokens=448, data_position=28)
    identity = CheckpointIdentity(
        "small", "here/cpu/0", before._trainer.layout.digest, before._trainer.optimizer_identity
    )
    store = CheckpointStore(scene.folder / "learner" / "checkpoints", identity)
    store.save(LearnerCheckpoint(state, {2: Residual(1, torch.ones(3))}))
    again = scene.learner(**changes)
    assert again._resume.position() == Position(7, 28)
    assert again._snapshot().state.steps == 0  # not before the syncer has said which training this is
    again._resume.take_up("")
    kept = again._snapshot()
    assert (kept.state.steps, kept.state.tokens, kept.state.data_position) == (7, 448, 28)
    assert list(kept.residuals) == [2] * feeds_back


def test_a_full_disk_keeps_no_learner_from_beginning(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    options = scene.options()
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    Learner(options, scene.orders, scene.wakeup)


def test_documents_become_tokens_in_its_directory_unless_it_stops(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DILOCO_CACHE", raising=False)
    data = {"documents": {"path": str(write_text(tmp_path))}, "holdoutFraction": 0.1}
    model = {"builtin": {"preset": "pico", "vocabularySize": 257}}
    options = learner_options(tmp_path, {"data": data, "model": model})
    Learner(options, scene.orders, scene.wakeup)
    (made,) = (options.directory / "tokens").glob("*.tokens")
    made.unlink()
    scene.orders.stop("SIGTERM")
    with pytest.raises(DataStoppedError):
        Learner(options, scene.orders, scene.wakeup)


@pytest.mark.parametrize(("wanted", "asked_for"), [(None, "auto"), ("cuda:1", "cuda:1")])
def test_it_trains_on_the_device_it_is_told_or_on_the_best_there_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, wanted: str | None, asked_for: str
) -> None:
    seen: list[str] = []

    def choose(name: str) -> torch.device:
        seen.append(name)
        return torch.device("cpu")

    monkeypatch.setattr("diloco.learner.job_training.choose_device", choose)
    Learner(replace(scene.options(), device=wanted), scene.orders, scene.wakeup)
    assert seen == [asked_for]


class TestEnds:
    @pytest.mark.parametrize(
        ("kind", "parts", "written"),
        [(EndKind.STOPPED, True, True), (EndKind.FINISHED, False, True), (EndKind.REFUSED, False, False)],
    )
    def test_only_who_is_stopped_hands_in_and_only_who_was_let_in_counts(
        self, scene: Scene, kind: EndKind, *, parts: bool, written: bool
    ) -> None:
        ending, file = Ending(kind, "why"), scene.folder / "learner" / "activity.json"
        assert scene.scripted(ending).run() == ending
        assert (("exchange.leave", NOW, "why", 20.0) in scene.calls) is parts
        assert file.exists() is written
        if written:
            told = json.loads(file.read_text())
            account = [told[name] for name in ("learner", "ending", "reason", "steps", "sessions")]
            assert account == ["here/cpu/0", kind, "why", 40, 2]

    @pytest.mark.parametrize("kind", [EndKind.FINISHED, EndKind.STOPPED])
    def test_a_checkpoint_is_written_before_its_other_processes_end(self, scene: Scene, kind: EndKind) -> None:
        learner = scene.scripted(Ending(kind, "why"))
        learner._training = learner._training._replace(end=lambda: scene.calls.append(("end",)))
        learner.run()
        assert ("writer.close",) in scene.calls[: scene.calls.index(("end",))]

    @pytest.mark.parametrize(
        ("hand_in_seconds", "finish", "idle", "flush"),
        [(20.0, 20.0, 16.0, 6.0), (10.5, 10.5, 6.5, 1.0), (3.0, 3.0, 0.0, 1.0), (0.0, 0.0, 0.0, 1.0)],
    )
    def test_it_parts_within_its_bound_and_joins_no_more(
        self, scene: Scene, hand_in_seconds: float, finish: float, idle: float, flush: float
    ) -> None:
        learner = scene.scripted(hand_in_seconds=hand_in_seconds)
        scene.takes = {"writer.finish": 4.0, "exchange.hand_in": 10.0}
        learner._shut_down(STOPPED)
        assert scene.calls == [
            ("loop.answer_waiting",),
            ("writer.finish", finish),
            ("writer.longest_seconds",),
            ("exchange.pending",),
            ("link.current",),
            ("exchange.hand_in", idle),
            ("exchange.leave", NOW, "SIGTERM", flush),
            ("writer.close",),
        ]

    def test_a_disk_that_is_busy_for_long_is_waited_for_after_leaving(self, scene: Scene) -> None:
        scene.scripted(begun=False)._shut_down(STOPPED)
        left = scene.calls.index(("exchange.leave", NOW, "SIGTERM", 20.0))
        assert scene.calls[left + 1 :] == [("writer.finish", 90.0), ("writer.close",)]

    @pytest.mark.parametrize(("seconds_each", "waits"), [(None, 20.0), (1.0, 20.0), (8.0, 48.0), (16.0, 90.0)], ids=str)
    def test_what_is_due_is_handed_in_at_the_links_rate(
        self, scene: Scene, seconds_each: float | None, waits: float
    ) -> None:
        learner: Any = scene.scripted(due=(2, 2))
        if seconds_each is not None:
            payload_bytes = learner._codec.payload_bytes(learner._trainer.layout.numels[2])
            learner._exchange.push_bytes_per_second = payload_bytes / seconds_each
        learner._shut_down(STOPPED)
        assert ("exchange.hand_in", waits) in scene.calls

    def test_who_has_made_no_step_keeps_none(self, scene: Scene) -> None:
        learner = scene.scripted(steps=0)
        learner._shut_down(STOPPED)
        assert {call for call in scene.calls if str(call[0]).startswith("writer")} == {("writer.longest_seconds",)}
        assert learner.checkpoint_written

    @pytest.mark.parametrize(
        ("closed", "written_steps", "kept"), [(True, 40, True), (False, 40, False), (True, 20, False)]
    )
    def test_whether_it_keeps_its_last_step_is_told(
        self, scene: Scene, caplog: pytest.LogCaptureFixture, written_steps: int, *, closed: bool, kept: bool
    ) -> None:
        caplog.set_level(logging.INFO)
        learner = scene.scripted(closed=closed, written_steps=written_steps)
        learner._shut_down(STOPPED)
        assert (learner.checkpoint_written, caplog.records[-1].getMessage()) == (
            kept,
            "wrote a checkpoint of step 40"
            if kept
            else "no last checkpoint: no room; a restart continues from the previous one",
        )

    @pytest.mark.parametrize(
        ("told", "idle", "line"),
        [
            (True, True, "leaving, handed in everything that was requested"),
            (True, False, "leaving, could not hand in everything"),
            (False, True, "leaving, but could not tell the syncer, handed in everything that was requested"),
        ],
    )
    def test_how_it_left_is_told(
        self, scene: Scene, caplog: pytest.LogCaptureFixture, line: str, *, told: bool, idle: bool
    ) -> None:
        caplog.set_level(logging.INFO)
        scene.scripted(told=told, idle=idle)._shut_down(STOPPED)
        assert line in [record.getMessage() for record in caplog.records]

    def test_without_a_session_nothing_is_handed_in(self, scene: Scene) -> None:
        scene.scripted(membership=None)._shut_down(STOPPED)
        called = [call[0] for call in scene.calls]
        assert called[-2:] == ["link.current", "writer.close"]

    def test_an_account_that_cannot_be_written_is_a_line(self, scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
        file = scene.folder / "learner" / "activity.json"
        file.mkdir(parents=True)
        scene.scripted(Ending(EndKind.FINISHED, "enough")).run()
        assert caplog.records[-1].getMessage() == f"cannot write {file}: Is a directory"

    def test_closing_ends_the_exchange_and_then_the_writer(self, scene: Scene) -> None:
        scene.scripted().close()
        assert scene.calls == [("exchange.close",), ("writer.close",)]

    def test_one_that_stays_asks_ever_more_rarely_until_it_is_stopped(self, scene: Scene) -> None:
        learner = scene.scripted()
        assert not learner._figures().over()
        learner._uniform = lambda: 1.0
        scene.wakeup.events = [*[lambda: None] * 7, lambda: scene.orders.stop("SIGTERM")]
        learner.stay()
        assert scene.wakeup.waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        assert scene.calls.count(("exchange.goes_on",)) == 7
        assert learner._figures().over()
        assert ("exchange.close",) in scene.calls

    def test_one_that_stays_ends_once_the_job_goes_on(self, scene: Scene) -> None:
        learner: Any = scene.scripted()
        learner._exchange = Part("exchange", scene, goes_on=True)
        scene.wakeup.events = [lambda: None]
        learner.stay()
        assert len(scene.wakeup.waits) == 1
