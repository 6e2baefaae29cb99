"""Experiment trackers that a job's syncer writes its curves to."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from diloco.spec.base import ENDPOINT_URL, SpecModel
from diloco.spec.errors import PartError, Problem
from diloco.spec.words import not_one

TrackerName = Literal["tensorboard", "wandb", "mlflow"]
ONE_OF_EACH = "have two trackers of one kind; use at most one of each"

_Word = Annotated[str, Field(min_length=1, max_length=128)]


class TensorBoard(SpecModel):
    """TensorBoard's event files."""

    folder: str | None = Field(default=None, min_length=1, max_length=1024)
    """Default: the folder ``tensorboard`` in the syncer's directory, which in a cluster is on its claim."""


class WeightsAndBiases(SpecModel):
    """A run of Weights & Biases.

    Its own variables hold (WANDB_API_KEY, WANDB_BASE_URL, WANDB_MODE), in a cluster by ``syncer.env``.
    """

    project: _Word
    """The project that has the run."""
    entity: _Word | None = None
    """The user or team that has the project. Default: that of the key."""


class MLflow(SpecModel):
    """A run of an MLflow server.

    Its own variables hold (MLFLOW_TRACKING_TOKEN), in a cluster by ``syncer.env``.
    """

    uri: str = Field(pattern=ENDPOINT_URL, max_length=1024)
    """The server's address, as https://mlflow.example.com."""
    experiment: _Word
    """The experiment that has the run; it is made if it is not there."""


class Tracker(SpecModel):
    """One tracker: exactly one of ``tensorboard``, ``wandb`` and ``mlflow``.

    Its package has to be where the syncer runs (the extra ``track``).
    """

    tensorboard: TensorBoard | None = None
    """Event files for TensorBoard."""
    wandb: WeightsAndBiases | None = None
    """A run of Weights & Biases."""
    mlflow: MLflow | None = None
    """A run of MLflow."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds: dict[str, object] = {"tensorboard": self.tensorboard, "wandb": self.wandb, "mlflow": self.mlflow}
        if problem := not_one(kinds):
            raise PartError(Problem("", problem))
        return self

    @property
    def name(self) -> TrackerName:
        """Which one it is."""
        if self.tensorboard is not None:
            return "tensorboard"
        return "wandb" if self.wandb is not None else "mlflow"
