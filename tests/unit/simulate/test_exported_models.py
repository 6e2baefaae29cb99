"""What is exported is what was evaluated; that it is so with every kind of model is in `test_model_kinds`."""

from pathlib import Path

import pytest
import torch

from diloco.learner.training.exported import exported_loss
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.simulate import Scenario, simulate
from diloco.syncer.disk.exporter import export
from tests.support.small_job import named_job, small_job, write_text


def test_a_model_with_split_embeddings_trains_and_is_exported_whole(tmp_path: Path) -> None:
    model = {"builtin": {"preset": "pico", "vocabularySize": 8192, "tieEmbeddings": False}}
    training = {"tokens": 24 * 64, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 6}}
    spec = small_job(write_text(tmp_path), model=model, training=training)
    layout = layout_of(build_model(spec), 6)
    slots = [slot.tensor for fragment in layout.fragments for slot in fragment.slots]
    assert {tensor.name for tensor in slots if tensor.first_row} == {"embedding.weight", "output.weight"}
    job = named_job("split", spec)
    outcome = simulate(job, Scenario())
    assert outcome.loss < outcome.loss_start
    path = tmp_path / "model.safetensors"
    export(job, layout, outcome.parameters, 1, path)
    assert exported_loss(spec, path, torch.device("cpu")).means.loss == pytest.approx(outcome.loss, rel=1e-6)
