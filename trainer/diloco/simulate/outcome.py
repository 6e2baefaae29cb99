"""What a simulated run came to."""

from dataclasses import dataclass

from torch import Tensor

from diloco.core.view import EngineView
from diloco.simulate.syncer import Counts


@dataclass(frozen=True)
class Course:
    """How a run went, whether or not anything was computed in it."""

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
    """Of the final one."""
    parameters: tuple[Tensor, ...]
    """The final global model: one flat f32 buffer a fragment."""
    virtual_seconds: float
    view: EngineView
    counts: Counts
    trace_digest: str
    """Digest over all events and actions with their times."""
