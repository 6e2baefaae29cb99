"""What is exported is what was evaluated, whatever a model holds beside its trained parameters."""

from pathlib import Path

import pytest
import torch

from diloco.learner.data.opening import open_data
from diloco.learner.training.exported import exported_loss
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import ModelError
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.simulate import Scenario, simulate
from diloco.spec import JobSpec
from diloco.syncer.disk.exporter import export
from tests.support.small_job import named_job, small_job, write_text


def spec_of(name: str, folder: Path, **arguments: object) -> JobSpec:
    return small_job(
        write_text(folder),
        model={"entrypoint": f"tests.support.models_with_buffers:{name}", "arguments": arguments},
        training={"tokens": 40 * 64, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 6}},
        sync={"fragments": 2, "interval": 2},
    )


@pytest.mark.parametrize(
    "name",
    [
        "float_mask",
        "whole_numbers",
        "bool_mask",
        "bf16_table",
        "drawn_table",
        "not_saved",
        "growing_cache",
        "tied",
        "frozen_embedding",
        "lora",
    ],
)
def test_the_exported_model_has_the_loss_of_the_final_evaluation(name: str, tmp_path: Path) -> None:
    spec = spec_of(name, tmp_path)
    job = named_job("made", spec)
    outcome = simulate(job, Scenario())
    assert outcome.loss != outcome.loss_start
    path = tmp_path / "model.safetensors"
    export(job, layout_of(build_model(spec), 2), outcome.parameters, 1, path)
    found = exported_loss(spec, path, torch.device("cpu"))
    assert found.means.loss == pytest.approx(outcome.loss, rel=1e-6)


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


def test_a_change_that_only_shows_later_ends_the_training_by_name(tmp_path: Path) -> None:
    spec = spec_of("average", tmp_path, manner="data")
    module = build_model(spec)  # the average is as yet of equal values
    data = open_data(spec, spec.learner_ids[0])
    trainer = InnerTrainer(spec, module, layout_of(module, 2), data, torch.device("cpu"))
    trainer.evaluate()
    trainer.step(0.0)
    trainer.step(0.0)
    with pytest.raises(ModelError, match=r"^model: training changes buffer average, "):
        trainer.evaluate()
