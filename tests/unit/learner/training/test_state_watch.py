"""What training changes besides trained parameters is noticed; what it leaves as it is, and modes, are left alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.learner.training.trainer import InnerTrainer
from diloco.model import ModelError
from diloco.model.build import build_model
from tests.support.small_job import small_job, write_text
from tests.support.small_learner import trainer_of


def of(folder: Path, name: str, precision: str = "F32", **arguments: Any) -> InnerTrainer:
    model = {"entrypoint": f"tests.support.models_with_buffers:{name}", "arguments": arguments}
    training = {"tokens": 100_000, "sequenceLength": 16, "batchSize": 4, "precision": precision}
    return trainer_of(small_job(write_text(folder), model=model, sync={"fragments": 1}, training=training))


@pytest.mark.parametrize(
    ("name", "arguments", "changed"),
    [
        ("batch_norm", {}, "buffer norm.num_batches_tracked"),
        ("spectral_norm", {}, "buffer middle.parametrizations.weight.0._u"),
        ("Averaging", {"manner": "in place"}, "buffer average"),
        ("Averaging", {"manner": "assigned"}, "buffer average"),
        ("Counting", {}, "buffer steps"),
        ("Teacher", {}, "frozen parameter teacher.weight"),
    ],
)
def test_what_a_pass_in_training_changes_is_named_before_a_step(
    tmp_path: Path, name: str, arguments: dict[str, Any], changed: str
) -> None:
    with pytest.raises(ModelError, match=rf"^model: training changes {changed}, and only .*; use") as raised:
        of(tmp_path, name, **arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "arguments", "changed"),
    [
        ("Averaging", {"manner": "data"}, "buffer average"),
        ("Averaging", {"persistent": False}, "buffer average"),
        ("Late", {"buffer": True}, "buffer shift"),
        ("Late", {"buffer": False}, "state that is neither a parameter nor a buffer"),
    ],
)
def test_what_changes_later_is_named_by_the_next_evaluation(
    tmp_path: Path, name: str, arguments: dict[str, Any], changed: str
) -> None:
    trainer = of(tmp_path, name, **arguments)
    trainer.evaluate()
    for _ in range(5):
        trainer.step(0.0)
    with pytest.raises(ModelError, match=f"^model: training changes {changed}, and only"):
        trainer.evaluate()


@pytest.mark.parametrize(
    "name",
    [
        "float_mask",
        "whole_numbers",
        "bool_mask",
        "bf16_table",
        "GrowingCache",
        "Lora",
        "tied",
        "PartlyEvaluating",
        "FrozenNorm",
    ],
)
def test_what_stays_as_it_is_is_let_pass(tmp_path: Path, name: str) -> None:
    trainer = of(tmp_path, name)
    for _ in range(3):
        trainer.step(0.0)
        trainer.evaluate()


def test_a_model_that_is_unsteady_by_right_is_trained_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = of(tmp_path, "Unsteady")
    for _ in range(3):
        trainer.step(0.0)
        trainer.evaluate()
    assert [one.message.count("different results for the same parameters") for one in caplog.records] == [1]


def test_watching_leaves_parameters_and_random_numbers_as_they_are(tmp_path: Path) -> None:
    trainer = of(tmp_path, "drawn_table")
    before, numbers = [one.clone() for one in trainer._module.parameters()], torch.get_rng_state()
    trainer._inner.watch.check()
    assert all(torch.equal(one, was) for one, was in zip(trainer._module.parameters(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), numbers)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("object_of_no_logits", "returned a dict, not a tensor of logits"),
        (
            "flat_logits",
            r"returned .* of shape \(8, 8\), it must return floating-point logits of shape \(1, 8, vocabulary\)",
        ),
        ("model_that_exits_when_called", "raised SystemExit: 3"),
    ],
)
def test_a_forward_pass_of_no_use_is_one_line_before_training(tmp_path: Path, name: str, told: str) -> None:
    model = {"entrypoint": f"tests.support.entrypoints:{name}"}
    with pytest.raises(ModelError, match=rf"^model: forward\(tokens\) .*{told}") as raised:
        trainer_of(small_job(write_text(tmp_path), model=model, sync={"fragments": 1}))
    assert "\n" not in str(raised.value)


def test_a_part_in_evaluation_mode_stays_in_it(tmp_path: Path) -> None:
    trainer = of(tmp_path, "PartlyEvaluating")
    trainer.step(0.0)
    trainer.evaluate()
    module = trainer._module
    parts = (module.get_submodule(name) for name in ("dropout", "norm"))
    assert [module.training, *(part.training for part in parts)] == [True, True, False]


def test_a_model_that_comes_in_evaluation_mode_is_trained_in_training_mode() -> None:
    model = {"entrypoint": "tests.support.models_with_buffers:evaluating"}
    assert all(part.training for part in build_model(small_job(model=model)).modules())


def test_a_base_of_16_bits_is_trained_with_bf16_and_refused_with_f32(tmp_path: Path) -> None:
    trainer = of(tmp_path, "HalfBase", precision="BF16")
    before = trainer.evaluate()
    assert trainer.step(0.0).loss == pytest.approx(before, rel=0.2)
    with pytest.raises(ModelError, match=r"^model: its forward pass raised RuntimeError: .*dtype"):
        of(tmp_path, "HalfBase")
