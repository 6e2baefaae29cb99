"""What an evaluation and a snapshot make of a model's buffers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from diloco.learner.data import open_data
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import ModelError, build_model, layout_of
from tests.support.small_job import small_job, write_text


def trainer_of(folder: Path, **changes: Any) -> InnerTrainer:
    job = small_job(write_text(folder), **changes)
    module = build_model(job)
    data = open_data(job, job.learner_ids[0])
    return InnerTrainer(job, module, layout_of(module, job.sync.fragments), data, torch.device("cpu"))


def test_an_evaluation_is_not_training(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    seen: list[bool] = []
    trainer._module.register_forward_hook(lambda module, *_: seen.append(module.training))
    trainer.evaluate()
    assert set(seen) == {False}
    assert trainer._module.training


def test_a_buffer_that_no_model_is_saved_with_may_change(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer._module.register_buffer("scratch", torch.zeros(1), persistent=False)
    trainer.evaluate()
    trainer.state()


def test_a_buffer_that_has_changed_ends_what_the_others_would_not_see(tmp_path: Path) -> None:
    model = {"entrypoint": "tests.support.models_with_buffers:drawn_table"}
    trainer = trainer_of(tmp_path, model=model, sync={"fragments": 1, "interval": 6})
    (table,) = trainer._module.buffers()
    trainer.evaluate()
    table.data.add_(1.0)
    trainer.state()  # which looks at no values: it is in the way of the steps
    with pytest.raises(ModelError, match="table"):
        trainer.evaluate()
    table.add_(1.0)
    with pytest.raises(ModelError, match="table"):
        trainer.state()
