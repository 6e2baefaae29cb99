"""The results of a simulated run."""

from dataclasses import dataclass

from torch import Tensor

from diloco.core.view import EngineView
from diloco.simulate.syncer import Counts


@dataclass(frozen=True)
class Course:
    """How a run went, whether or not training was computed."""

    virtual_seconds: float
    view: EngineView
    counts: Counts
    trace_digest: str
    """Digest over all events and actions with their times."""


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    loss_start: float
    """Evaluation loss of the initial model, nats a token."""
    loss: float
    """Evaluation loss of the final model."""
    parameters: tuple[Tensor, ...]
    """The final global model: one flat f32 buffer per fragment."""
    virtual_seconds: float
    view: EngineView
    counts: Counts
    trace_digest: str
    """Digest over all events and actions with their times."""
