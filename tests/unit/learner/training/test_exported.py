"""An exported model's loss, from its file alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from diloco.learner.data import DataError
from diloco.learner.data.opening import open_data
from diloco.learner.data.tokenfile import write_token_file
from diloco.learner.training.exported import exported_loss
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import ModelError, ModelInfo, export_model
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import JobSpec
from tests.support.small_job import small_job, write_text

CPU = torch.device("cpu")


def export(job: JobSpec, path: Path, steps: int = 3) -> float:
    """Train a little and write the model; returns the loss that the trainer computes."""
    module = build_model(job)
    layout = layout_of(module, job.sync.fragments)
    trainer = InnerTrainer(job, module, layout, open_data(job, job.learner_ids[0]), CPU)
    for _ in range(steps):
        trainer.step(0.0)
    for fragment in layout.fragments:  # the model is what the syncer would have: what was received
        trainer.apply(fragment.index, 1, trainer.capture(fragment.index)._values)
    info = ModelInfo("small", job.model, 257, job.training.sequence_length, layout.digest, 192)
    export_model(module, path, info)
    return trainer.evaluate()


@pytest.mark.parametrize("learners", [1, 2])
def test_it_is_the_loss_that_the_first_learner_found(tmp_path: Path, learners: int) -> None:
    job = small_job(write_text(tmp_path), learners)
    loss = export(job, tmp_path / "model.safetensors")
    found = exported_loss(job, tmp_path / "model.safetensors", CPU)
    assert found.means.loss == pytest.approx(loss, rel=1e-7)
    assert (found.sequences, found.info.tokens) == (6, 192)


def test_a_file_that_is_no_model_of_the_job_is_named(tmp_path: Path) -> None:
    job = small_job(write_text(tmp_path))
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=f"{path}: cannot be read as safetensors"):
        exported_loss(job, path, CPU)
    export(job, path)
    with pytest.raises(ModelError, match=f"{path}: is of another model: the file has no tensor blocks.3"):
        exported_loss(small_job(tmp_path / "text.txt", model={"builtin": {"preset": "nano"}}), path, CPU)
    (tmp_path / "text.txt").write_text("short")
    with pytest.raises(DataError, match=r"data\.text\.path"):
        exported_loss(job, path, CPU)


def test_data_with_ids_that_the_model_does_not_know_are_refused_by_name(tmp_path: Path) -> None:
    path, tokens = tmp_path / "model.safetensors", tmp_path / "tokens"
    model = {"builtin": {"preset": "pico", "vocabularySize": 257}}
    export(small_job(write_text(tmp_path), model=model), path, steps=1)
    # All ids in the data are known, but the tokenizer could make others.
    write_token_file(tokens, [np.zeros(8192, np.int64)], 300, "another")
    job = small_job(data={"tokens": {"path": str(tokens)}, "holdoutFraction": 0.1}, model=model)
    with pytest.raises(DataError, match=r"data\.tokens\.path: has a vocabulary of 300, but the model's is 257"):
        exported_loss(job, path, CPU)
