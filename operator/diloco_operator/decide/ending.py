"""Whether a job has ended, and how. The syncer's word ends it, or its deadline; and an end is for good.

Pure. Pods that end say nothing: a StatefulSet starts them again.
"""

from dataclasses import dataclass
from typing import Literal

from diloco.spec.status import JobStatus
from diloco_operator.decide.observed import SyncerAway, SyncerStatusView
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.text import one_line


@dataclass(frozen=True, slots=True)
class End:
    """How a job ends."""

    phase: Literal["Complete", "Failed"]
    reason: Reason
    message: str


def recorded_end(status: JobStatus) -> Literal["Complete", "Failed"] | None:
    """The end that stands in the status. Nothing undoes it."""
    for condition in status.conditions:
        if condition.type in ("Complete", "Failed") and condition.status == "True":
            return "Complete" if condition.type == "Complete" else "Failed"
    return None


def syncer_end(syncer: SyncerStatusView | SyncerAway | None) -> End | None:
    """The end that the syncer tells of. Complete only once the model is where it will be looked for."""
    if not isinstance(syncer, SyncerStatusView):
        return None
    told = one_line(syncer.phase_reason)
    if syncer.phase == "Failed":
        return End("Failed", Reason.TRAINING_FAILED, told or "the syncer gives no reason")
    if syncer.phase == "Complete" and syncer.model_exported:
        return End("Complete", Reason.BUDGET_REACHED, told or "the budget of tokens is merged")
    return None
