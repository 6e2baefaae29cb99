"""The loss of an exported model, computed as in the run's own final evaluation, from the file alone.

It uses the same held-out sequences in the same batches as the job's first learner.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from diloco.learner.data.opening import open_data
from diloco.learner.training.evaluate import Evaluated, mean_loss
from diloco.model import ModelInfo, load_model
from diloco.spec import JobSpec


@dataclass(frozen=True, slots=True)
class ExportedLoss:
    """The result of evaluating an exported model."""

    means: Evaluated
    sequences: int
    info: ModelInfo
    unit: str
    """Of the loss."""
    examples: str
    """What the held-out sequences are called."""


def exported_loss(job: JobSpec, path: Path, device: torch.device) -> ExportedLoss:
    """Evaluate the model in ``path`` on the held-out data of ``job``.

    Raises:
        ModelError: the file cannot be read, or is of another model than the job's.
        DataError: the job's data cannot be used, or has token ids outside the model's vocabulary.
    """
    loaded = load_model(path, job.model)
    data = open_data(job, job.learner_ids[0])
    module = loaded.module.to(device)
    data.task.check(module)
    means = mean_loss(module, data.task, data.holdout.batches())
    return ExportedLoss(means, data.holdout.sequences, loaded.info, data.task.unit, data.task.examples)
