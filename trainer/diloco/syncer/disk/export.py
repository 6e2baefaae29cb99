"""The finished model as a file for everybody else.

It must not know why the job is over.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from diloco.core.fragments import Layout
from diloco.model import ModelInfo, export_model, model_from_fragments, vocabulary_size_of
from diloco.spec import DiLoCoJob


def export(job: DiLoCoJob, layout: Layout, parameters: Sequence[torch.Tensor], tokens: int, path: Path) -> None:
    """Write the global model (f32, flat, one tensor a fragment), trained on ``tokens`` merged tokens, to ``path``.

    Raises:
        OSError: it could not be written; what stood at ``path`` still does.
    """
    module = model_from_fragments(job.spec, layout, parameters)
    info = ModelInfo(
        job=job.metadata.name,
        model=job.spec.model,
        vocabulary_size=vocabulary_size_of(module),
        sequence_length=job.spec.training.sequence_length,
        layout_digest=layout.digest,
        tokens=tokens,
    )
    export_model(module, path, info)
