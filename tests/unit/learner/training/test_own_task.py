"""Tasks of the user's own: what they train, and what is said of wrong ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.data import DataError
from diloco.learner.training.exported import exported_loss
from diloco.learner.training.optimizers.optimizer import OptimizerError
from diloco.learner.training.optimizers.packed_state import packed, unpacked
from diloco.learner.training.share import Share
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import ModelInfo, export_model
from diloco.model.fragments import layout_of
from diloco.spec import JobSpec
from tests.support.small_job import small_job
from tests.support.small_learner import trainer_of

OPTIMIZERS = pytest.mark.parametrize("task", ["ImagesWithMomentum", "ImagesWithAdafactor", "ImagesWithCounts"])


def job_of(name: str, model: str = "tests.support.tasks:images_model", **arguments: Any) -> JobSpec:
    training = {"tokens": 10_000, "sequenceLength": 1, "batchSize": 8, "evaluation": {"sequences": 20}}
    return small_job(
        model={"entrypoint": model},
        data={"holdoutFraction": 0.1},
        task={"entrypoint": f"tests.support.tasks:{name}", "arguments": arguments},
        training=training | {"optimizer": {"learningRate": 3e-3, "warmupSteps": 4}},
        sync={"fragments": 2},
    )


def hand_over(giver: InnerTrainer, taker: InnerTrainer) -> None:
    for fragment in range(2):
        taker.apply(fragment, 1, giver.capture(fragment)._values)


@pytest.mark.parametrize("task", ["Images", "ImagesWithMomentum", "ImagesWithAdafactor"])
def test_a_task_is_trained_by_its_own_loss_and_optimizer(task: str) -> None:
    trainer = trainer_of(job_of(task))
    before = trainer.evaluate()
    chance = trainer.metrics["accuracy"]
    for _ in range(40):
        result = trainer.step(0.0)
    hand_over(trainer, trainer)
    assert trainer.evaluate() < 0.8 * before
    assert trainer.metrics["accuracy"] > chance
    assert (result.tokens, trainer.tokens, trainer.data_position) == (8, 320, 320)


def test_metrics_whose_names_differ_among_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    share = Share()
    share.ranks = 2
    monkeypatch.setattr(share, "summed", lambda values: 2 * values + (not values.is_floating_point()))
    trainer = trainer_of(job_of("Images"))
    trainer._inner._share = share
    with pytest.raises(DataError, match="its metrics have other names for some batches; with several processes use"):
        trainer.evaluate()


def test_an_example_counts_as_a_sequence_whatever_its_loss_counts() -> None:
    job = job_of("Answers", model="tests.support.entrypoints:tiny_model")
    job = job.model_copy(update={"training": job.training.model_copy(update={"sequence_length": 9})})
    trainer = trainer_of(job)
    batch = trainer._inner._task.batch(trainer._data.sampler.numbers(0, 8))
    with torch.no_grad():
        total, count = trainer._inner._task.loss(trainer._module, batch)
    assert count == batch["counts"].sum() < 8 * 4
    first = trainer.step(0.0)
    assert first.tokens == 8 * 9
    assert first.loss == pytest.approx(float(total / count), rel=1e-6)


def own_of(trainer: InnerTrainer) -> torch.optim.Optimizer:
    """The optimizer that the task has made."""
    (made,) = trainer._inner.optimizer._optimizers  # type: ignore[union-attr]
    return made


def groups_of(trainer: InnerTrainer) -> list[dict[str, Any]]:
    return own_of(trainer).param_groups


@OPTIMIZERS
def test_an_own_optimizer_resumes_to_the_bit(task: str, tmp_path: Path) -> None:
    whole, first, second = (trainer_of(job_of(task)) for _ in range(3))
    for trainer, steps in ((whole, 8), (first, 4)):
        for _ in range(steps):
            trainer.step(0.5)
    store = CheckpointStore(tmp_path, CheckpointIdentity("job", "here/cpu/0", "digest", first.optimizer_identity))
    store.save(LearnerCheckpoint(first.state(), {}))
    loaded = store.load()
    assert loaded is not None
    second.load_state(loaded.state)
    hand_over(first, second)
    for _ in range(4):
        second.step(0.5)
    pairs = zip(whole._module.parameters(), second._module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert {name: value.tolist() for name, value in whole.state().tensors.items()} == {
        name: value.tolist() for name, value in second.state().tensors.items()
    }


def test_numbers_of_an_own_optimizers_groups_outlive_a_restart() -> None:
    first, second = (trainer_of(job_of("ImagesWithCounts")) for _ in range(2))
    (group,) = groups_of(second)
    first.step(0.0)
    second.load_state(first.state())
    assert (group["pace"], group["begun"]) == (0.9, True)
    second.start_over()
    assert (group["pace"], group["begun"]) == (1.0, False)
    state = first.state()
    values = unpacked(state.tensors)
    del values["groups"][0]["pace"]
    with pytest.raises(KeyError, match="pace"):
        second.load_state(replace(state, tensors=packed(values)))


def test_an_own_optimizers_rates_follow_the_jobs_warm_up_and_decay() -> None:
    trainer = trainer_of(job_of("ImagesWithAdafactor"))
    groups = groups_of(trainer)
    trainer.step(0.0)
    assert [group["lr"] for group in groups] == pytest.approx([0.02 / 4, 0.01 / 4])
    assert trainer.optimizer_identity.endswith("Adafactor")
    for _ in range(4):
        trainer.step(1.0)
    assert [group["lr"] for group in groups] == pytest.approx([0.002, 0.001])


def test_a_state_that_cannot_be_stored_is_refused_by_name() -> None:
    trainer = trainer_of(job_of("ImagesWithCounts"))
    trainer.step(0.0)
    own_of(trainer).state[trainer._parameters["0.bias"]]["past"] = [object()]
    with pytest.raises(
        OptimizerError, match=r"^task\.entrypoint: its optimizer keeps a object at state\.0\.bias\.past\.0; use"
    ):
        trainer.state()


def test_an_exported_model_evaluates_as_in_its_run(tmp_path: Path) -> None:
    job = job_of("Images")
    trainer = trainer_of(job)
    for _ in range(10):
        trainer.step(0.0)
    hand_over(trainer, trainer)
    loss = trainer.evaluate()
    layout = layout_of(trainer._module, 2)
    path = tmp_path / "model.safetensors"
    export_model(trainer._module, path, ModelInfo("small", job.model, 0, 1, layout.digest, 80))
    result = exported_loss(job, path, torch.device("cpu"))
    assert (result.means.loss, result.means.metrics) == (loss, trainer.metrics)
    assert (result.sequences, result.examples) == (20, "examples")


@pytest.mark.parametrize(
    ("method", "what", "told"),
    [
        ("batch", "nothing", "its batch is a NoneType; return a mapping of names to tensors"),
        ("batch", "empty", "its batch is an empty dict; return a mapping of names to tensors"),
        ("batch", "list", "'images' in its batch is a list; return tensors"),
        ("batch", "array", "'images' in its batch is a ndarray; return tensors"),
        ("batch", "raises", r"batch raised RuntimeError: shapes differ, line \d+ of tasks.py"),
        ("loss", "raises", r"loss raised RuntimeError: shapes differ, line \d+ of tasks.py"),
        ("loss", "nothing", r"its loss is a NoneType; return \(sum, count\)"),
        ("loss", "mean", r"its loss is a torch.float32 tensor of shape \(\); return \(sum, count\)"),
        ("loss", "whole", r"its loss is \(a torch.float32 tensor of shape \(2, 4\), a int\); return"),
        ("loss", "integer", "the sum of its loss is a int; return a floating-point tensor"),
        ("loss", "detached", "its loss needs no gradient; compute it from the module"),
        ("loss", "count 0", "its loss has a count of 0 in an evaluation; it must be above 0"),
        ("metrics", "nothing", r"its metrics are a NoneType; return a mapping"),
        ("metrics", "unmade pair", r"its metric accuracy is a float; return \(sum, count\)"),
        ("optimizer", "nothing", "its optimizer is a NoneType; return a torch.optim.Optimizer"),
        ("optimizer", "other", "its optimizer does not hold 0.weight; give it every parameter, or freeze it"),
        ("optimizer", "part", "its optimizer does not hold 0.bias"),
        ("optimizer", "more", "its optimizer holds more than the parameters it was given"),
        ("optimizer", "closure", r"its optimizer's step\(\) raised TypeError: .*closure"),
    ],
)
def test_a_mistake_in_a_task_is_one_line(method: str, what: str, told: str) -> None:
    with pytest.raises(DataError, match=f"^task.entrypoint: tests.support.tasks:Faulty: {told}") as raised:
        _used(job_of("Faulty", method=method, what=what))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("missing", {}, "tests.support.tasks has no missing"),
        ("images_model", {}, "tests.support.tasks:images_model returned a Sequential; a task has __len__"),
        ("NoLength", {"method": "batch", "what": "empty"}, "tests.support.tasks:NoLength: __len__ raised ValueError"),
        ("Images", {"count": 8}, "has 8 examples, at least 9 are needed for a batch of 8"),
    ],
)
def test_what_is_no_task_or_too_small_is_one_line(name: str, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=f"^task.entrypoint: {told}") as raised:
        _used(job_of(name, **arguments))
    assert "\n" not in str(raised.value)


def _used(job: JobSpec) -> None:
    trainer = trainer_of(job)
    trainer.evaluate()
    trainer.step(0.0)
