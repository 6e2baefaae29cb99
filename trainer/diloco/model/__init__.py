"""Builds the job's model, cuts it into fragments, reads and writes them, and exports the trained model.

Learner and syncer both build the model here, so both get the same layout.
"""

from diloco.model.errors import ModelError
from diloco.model.export import LoadedModel, ModelInfo, export_model, load_model

__all__ = ["LoadedModel", "ModelError", "ModelInfo", "export_model", "load_model"]
