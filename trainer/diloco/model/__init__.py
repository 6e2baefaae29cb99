"""Builds the job's model, cuts it into fragments, reads and writes them, and exports the trained model.

Learner and syncer both build the model here, so both get the same layout.
"""

from diloco.model.build import build_model, layout_of_job, model_from_fragments
from diloco.model.entrypoint import EntrypointError, load_entrypoint
from diloco.model.errors import ModelError
from diloco.model.export import LoadedModel, ModelInfo, export_model, fill_trained, load_model, stored_tensors
from diloco.model.fragments import layout_of, read_fragment, trained_parameters, write_fragment
from diloco.model.matrices import hidden_matrices
from diloco.model.probe import check_model, vocabulary_size_of

__all__ = [
    "EntrypointError",
    "LoadedModel",
    "ModelError",
    "ModelInfo",
    "build_model",
    "check_model",
    "export_model",
    "fill_trained",
    "hidden_matrices",
    "layout_of",
    "layout_of_job",
    "load_entrypoint",
    "load_model",
    "model_from_fragments",
    "read_fragment",
    "stored_tensors",
    "trained_parameters",
    "vocabulary_size_of",
    "write_fragment",
]
