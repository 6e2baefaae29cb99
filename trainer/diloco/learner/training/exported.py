"""The loss of an exported model, computed as in the run's own final evaluation, from the file alone.

It uses the same held-out sequences in the same batches as the job's first learner.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from diloco.learner.data import open_data
from diloco.learner.training.evaluate import mean_loss
from diloco.learner.training.trainer import check_vocabulary
from diloco.model import ModelInfo, load_model
from diloco.spec import JobSpec


@dataclass(frozen=True, slots=True)
class ExportedLoss:
    """The result of evaluating an exported model."""

    loss: float
    """Mean cross-entropy, nats per token; not finite if the model is broken."""
    sequences: int
    info: ModelInfo


def exported_loss(job: JobSpec, path: Path, device: torch.device) -> ExportedLoss:
    """Evaluate the model in ``path`` on the held-out data of ``job``.

    Raises:
        ModelError: the file cannot be read, or is of another model than the job's.
        DataError: the job's data cannot be used, or has token ids outside the model's vocabulary.
    """
    loaded = load_model(path, job.model)
    data = open_data(job, job.learner_ids[0])
    check_vocabulary(data, loaded.module)
    loss = mean_loss(loaded.module.to(device), data.holdout.batches(), device)
    return ExportedLoss(loss, data.holdout.sequences, loaded.info)
