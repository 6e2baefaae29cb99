"""Loops of the user's own: what they train, what outlives a restart, and what is said of wrong ones."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import diloco
from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.data import DataError, DataUnavailableError
from diloco.learner.data.opening import open_task
from diloco.learner.data.own_code import OwnCode
from diloco.learner.data.source import DataStoppedError
from diloco.learner.exchange.orders import Ending, EndKind
from diloco.learner.process.learner_process import run_learner
from diloco.learner.session import SessionError
from diloco.learner.session.job_session import Session
from diloco.learner.session.own_loop import OwnLoop
from diloco.learner.session.trainer import SessionTrainer
from diloco.learner.training.optimizers.optimizer import OptimizerError
from diloco.learner.training.optimizers.packed_state import unpacked
from diloco.model import ModelError
from diloco.runtime.process.exits import EXIT_BAD_INPUT
from tests.support.own_loops import ENOUGH, Numbers, Stage
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of

LOOP_FIELD = "loop.entrypoint"
LOOP = f"{LOOP_FIELD}: tests.support.own_loops:"


def parameters(trainer: Any) -> list[torch.Tensor]:
    return [one.detach().clone() for one in trainer._module.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def ends_after(steps: int) -> Any:
    return lambda trainer: trainer.steps >= steps


@pytest.mark.usefixtures("one_torch_thread")
def test_a_plain_loop_trains_as_the_built_in_one_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, numbers = Stage(tmp_path, "plain"), Numbers()
    stage.after_step = ends_after(12)
    assert stage.run() == ENOUGH
    job = small_job(
        write_text(tmp_path),
        model={"entrypoint": "tests.support.entrypoints:tiny_model"},
        training={"tokens": 100_000, "sequenceLength": 16, "batchSize": 4, "optimizer": {"decay": "Constant"}},
        sync={"fragments": 2},
    )
    built_in = trainer_of(job)

    def batch(_: object) -> dict[str, torch.Tensor]:
        tokens = numbers.take()
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

    monkeypatch.setattr(built_in._inner._task, "batch", batch)  # the loop's data
    results = [built_in.step(0.0) for _ in range(12)]
    assert same(parameters(stage.trainer), parameters(built_in))
    assert (stage.trainer.steps, stage.trainer.tokens) == (built_in.steps, built_in.tokens) == (12, 12 * 64)
    told = [(one.loss, one.grad_norm, one.tokens) for one in stage.results]
    assert told == [(pytest.approx(one.loss), pytest.approx(one.grad_norm), 64) for one in results]
    rates = [one.learning_rate for one in results]
    assert [one.learning_rate for one in stage.results] == pytest.approx(rates)


@pytest.mark.usefixtures("one_torch_thread")
def test_a_loop_resumes_with_optimizer_and_data_to_the_bit(tmp_path: Path) -> None:
    whole, first, second = (Stage(tmp_path, "plain") for _ in range(3))
    for stage, steps in ((whole, 8), (first, 4)):
        stage.after_step = ends_after(steps)
        stage.run()
    identity = CheckpointIdentity("job", "here/cpu/0", "digest", first.trainer.optimizer_identity)
    store = CheckpointStore(tmp_path / "checkpoints", identity)
    store.save(LearnerCheckpoint(first.trainer.state(), {}))
    loaded = store.load()
    assert loaded is not None

    def restore(trainer: SessionTrainer) -> None:
        trainer.load_state(loaded.state)
        for fragment in range(2):
            trainer.apply(fragment, 1, first.trainer.capture(fragment)._values)

    second.on_begin, second.after_step = restore, ends_after(8)
    second.run()
    assert len(second.results) == 4
    assert same(parameters(whole.trainer), parameters(second.trainer))
    kept = [unpacked(one.trainer.state().tensors)["saved"] for one in (whole, second)]
    assert kept == [{"numbers": {"place": 8}}] * 2


def test_an_evaluation_is_of_what_was_received_and_changes_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "plain")
    losses: list[float] = []

    def evaluate(trainer: SessionTrainer) -> bool:
        before = parameters(trainer)
        losses.append(trainer.evaluate())
        assert same(before, parameters(trainer))
        assert trainer._module.training
        if trainer.steps == 2:
            trainer.apply(0, 1, trainer.capture(0)._values)
        return trainer.steps == 3

    stage.after_step = evaluate
    stage.run()
    assert losses[0] == losses[1] != losses[2]


def test_starting_over_drops_the_optimizers_state(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "plain")

    def start_over(trainer: SessionTrainer) -> bool:
        assert unpacked(trainer.state().tensors)["state"]
        trainer.start_over()
        assert unpacked(trainer.state().tensors)["state"] == {}
        return trainer.steps == 2

    stage.after_step = start_over
    assert stage.run() == ENOUGH


def test_steps_that_the_syncer_knows_of_are_counted(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "plain")
    stage.on_begin, stage.after_step = lambda trainer: trainer.catch_up(5, 0), ends_after(6)
    stage.run()
    assert (stage.trainer.steps, stage.trainer.tokens, stage.trainer.fragment_steps(0)) == (6, 6 * 64, 1)


def test_what_training_changes_besides_parameters_is_noticed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "changes_a_buffer", "tests.support.own_loops:model_with_a_mean")
    stage.after_step = lambda trainer: trainer.evaluate() if trainer.steps == 2 else None
    with pytest.raises(ModelError, match=r"^model: training changes buffer mean, and only trained parameters"):
        stage.run()


@pytest.mark.parametrize("begun", [True, False])
def test_a_stop_ends_a_loop_even_if_it_raises_then(tmp_path: Path, begun: bool) -> None:
    stage = Stage(tmp_path, "stops_by_itself", session_first=begun)
    if begun:
        stage.after_step = lambda _: stage.orders.stop("SIGTERM")
        assert stage.run().kind is EndKind.STOPPED
        assert [ending.reason for ending in stage.endings] == ["SIGTERM"]
    else:
        stage.orders.stop("SIGTERM")
        with pytest.raises(DataStoppedError, match="before the loop has entered its session"):
            stage.run()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("raises", r"it raised RuntimeError: shapes differ, line \d+ of own_loops.py"),
        ("raises inside", r"it raised RuntimeError: shapes differ, line \d+ of own_loops.py"),
        ("exits", "it raised SystemExit: 3"),
        ("no session", "returned without entering a diloco.session; train inside of one"),
        ("not entered", "returned without entering a diloco.session"),
        ("returns", r"returned before the job was complete; go on until step\(\) returns False"),
        ("twice", "calls diloco.session twice; call it once"),
        ("entered twice", "its session is entered twice; enter it once"),
        ("other model", "gives diloco.session another model; give it the one that it was called with"),
        ("no optimizer", "gives diloco.session a TinyModel; give it a torch.optim.Optimizer, or a list"),
        ("no optimizers", "gives diloco.session a list; give it a torch.optim.Optimizer, or a list"),
        ("held twice", "two of its optimizers hold embedding.weight; give each parameter to one of them"),
        ("idle", r"step\(\) was called 1000 times, and the optimizer has made no step; give diloco.session the"),
        ("unfreezes", "changes the model before its session; freeze, replace and load in model.entrypoint"),
        ("freezes", "changes the model before its session; freeze, replace and load in model.entrypoint"),
        ("part of it", "its optimizer does not hold embedding.weight"),
        ("outside", r"step\(\) is called outside of the session, or in another thread"),
        ("afterwards", r"step\(\) is called outside of the session, or in another thread"),
        ("thread", r"step\(\) is called outside of the session, or in another thread"),
        ("evaluates", "evaluate returned a NoneType; give one number"),
        ("two losses", r"step\(\): loss is a Tensor; give one number"),
        ("text as loss", r"step\(\): loss is a str; give one number"),
        ("text as norm", r"step\(\): gradient_norm is a dict; give one number"),
        ("a loader", r"saved 'data': it is a DataLoader, without state_dict\(\) and load_state_dict\(\); save"),
        ("a number", r"saved 'epoch': it is a int, without"),
        ("an object", r"saved 'data': its state_dict\(\) has a object at place\.1; use numbers, text, tensors"),
        ("raises there", r"saved 'data': state_dict raised ZeroDivisionError"),
        ("loads", "saved 'data': load_state_dict raised KeyError"),
    ],
)
def test_a_mistake_in_a_loop_is_one_line(tmp_path: Path, what: str, told: str) -> None:
    stage = Stage(tmp_path, "faulty", what=what)

    def used(trainer: SessionTrainer) -> bool:
        trainer.load_state(trainer.state())
        return bool(trainer.evaluate())

    stage.after_step = (lambda _: False) if what == "returns" else used
    with pytest.raises(DataError, match=f"^{LOOP}faulty: {told}") as raised:
        stage.run()
    assert "\n" not in str(raised.value)


def test_what_a_loop_tells_of_a_step_may_be_of_many_kinds(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "tells")
    losses: list[float] = []

    def step(trainer: SessionTrainer) -> bool:
        losses.append(trainer.evaluate())
        return trainer.steps == 3

    stage.after_step = step
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stage.run()
    assert losses == [0.5, 0.5, 0.5]
    told = [(str(one.loss), str(one.grad_norm)) for one in stage.results]
    assert told == [("2.0", "nan"), ("nan", "0.5"), ("nan", "nan")]


def test_on_a_gpu_a_loop_finds_its_device_tf32_and_what_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, chosen = Stage(tmp_path, "there_is_none"), list[object]()
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "DILOCO_CACHE"):
        monkeypatch.setenv(name, "")  # so that it is as before after the test
        monkeypatch.delenv(name)
    with pytest.raises(DataError):
        OwnLoop(stage.options, torch.device("cuda:1"), stage.orders, None)
    assert chosen == [1, "high"]
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(stage.options.directory / "compiled")


@pytest.mark.parametrize("what", ["a loader", "a number", "an object", "raises there"])
def test_what_cannot_be_saved_is_told_before_the_learner_joins(tmp_path: Path, what: str) -> None:
    stage = Stage(tmp_path, "faulty", what=what)
    with pytest.raises(DataError, match="saved"):
        stage.run()
    assert stage.trainer is None


def test_what_an_optimizer_cannot_save_is_told_after_its_first_step(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "keeps_an_object")
    with pytest.raises(OptimizerError, match=rf"^{LOOP_FIELD}: its optimizer keeps a object at state\.\S+\.note; use"):
        stage.run()
    assert stage.results == []


@pytest.mark.parametrize(
    ("counts", "counted", "told"),
    [
        ([1, 1, 1], [1, 1, 1], []),
        ([0, 0, 1, 0, 0, 1], [1, 1], ["step() was called without a step of the optimizer since the last call"]),
        ([2, 1, 3], [2, 1, 3], ["the optimizer made 2 steps before step() was called; all count"]),
    ],
)
def test_the_optimizers_steps_count_whatever_is_called(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, counts: list[int], counted: list[int], told: list[str]
) -> None:
    stage = Stage(tmp_path, "steps", counts=counts)
    stage.after_step = ends_after(sum(counts))
    assert stage.run() == ENOUGH
    assert [(one.steps, one.tokens) for one in stage.results] == [(one, one * 64) for one in counted]
    assert (stage.trainer.steps, stage.trainer.tokens) == (sum(counts), sum(counts) * 64)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(";")[0] for line in lines] == [f"{LOOP_FIELD}: {one}".partition(";")[0] for one in told]


def test_a_step_within_a_step_counts_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "steps_twice_nested")
    assert stage.run() == ENOUGH
    assert [one.steps for one in stage.results] == [1, 1, 1]


def test_a_stop_ends_a_loop_whose_optimizer_makes_no_step(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "faulty", what="idle")
    stage.on_begin = lambda _: stage.orders.stop("SIGTERM") if stage.results else None
    stage.orders.ending = lambda: next(endings)  # type: ignore[method-assign]
    endings = iter([None, None, Ending(EndKind.STOPPED, "SIGTERM"), None])
    assert stage.run().kind is EndKind.STOPPED


def test_a_loop_that_ignores_the_end_is_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(tmp_path, "goes_on", what="ignores the end")
    assert stage.run() == ENOUGH
    assert "the loop goes on although step() has returned False" in caplog.text


def test_a_loop_that_catches_what_its_session_raises_is_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "goes_on", what="catches")
    stage.after_step = lambda trainer: trainer.evaluate()
    with pytest.raises(DataError, match=f"^{LOOP}goes_on: evaluate returned a NoneType; give one number$"):
        stage.run()
    assert len(stage.results) == 1


def test_what_a_loop_raises_after_a_step_is_tried_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "faulty", what="raises later")
    with pytest.raises(DataUnavailableError, match=f"^{LOOP}faulty: it raised RuntimeError: a worker was killed, line"):
        stage.run()


def test_a_learner_ends_with_one_line_of_a_wrong_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run_learner(Stage(tmp_path, "faulty", what="raises").options) == EXIT_BAD_INPUT
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{LOOP}faulty: it raised RuntimeError: shapes differ")


def test_what_needs_a_task_says_that_a_loop_has_its_own(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^loop: .* in a loop of its own, which only 'diloco run' executes$"):
        open_task(Stage(tmp_path, "plain").options.job.spec)


def test_without_a_learner_there_is_no_session() -> None:
    model = torch.nn.Linear(1, 1)
    with pytest.raises(SessionError, match=r"^diloco.session: .*name the loop as spec.loop, and use 'diloco run'$"):
        diloco.session(model, torch.optim.SGD(model.parameters()), evaluate=lambda _: 0.0)


def test_each_learner_draws_other_data_and_the_same_after_a_restart(tmp_path: Path) -> None:
    options, parts = Stage(tmp_path, "plain").options, cast("Any", SimpleNamespace(device="cpu"))
    names = ("here/cpu/0", "here/cpu/1", "here/cpu/0")
    made = [Session(replace(options, learner=name), parts, OwnCode("", ""), parts) for name in names]
    assert made[0].seed == made[2].seed != made[1].seed
    assert all(0 <= one.seed < 1 << 31 for one in made)
