"""Whether a job has ended and how, and how long it is kept afterwards.

An end is final, but a complete job goes on if ``training.tokens`` is raised above what it has merged.

The syncer reports that a job is complete or has failed. ``activeDeadlineSeconds`` ends a job that takes too long; as in
a batch/v1 Job it counts from when the job was started or last resumed. ``ttlSecondsAfterFinished`` deletes the job and
its volume.

Pure. Pods that end do not end the job: a StatefulSet starts them again.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from diloco.spec.status.engine import Phase
from diloco.spec.status.job import JobStatus
from diloco_operator.decide.observed import SyncerAway, SyncerStatusView
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import one_line


@dataclass(frozen=True, slots=True)
class End:
    """How a job ends."""

    phase: Literal["Complete", "Failed"]
    reason: Reason
    message: str


def recorded_end(status: JobStatus) -> Literal["Complete", "Failed"] | None:
    """The end that the status records."""
    for condition in status.conditions:
        if condition.type in ("Complete", "Failed") and condition.status == "True":
            return "Complete" if condition.type == "Complete" else "Failed"
    return None


def goes_on(status: JobStatus, budget_tokens: int | None) -> bool:
    """Whether a job that is recorded as complete has a budget above what is merged. None: it cannot be read."""
    merged = None if status.progress is None else status.progress.tokens
    is_more = budget_tokens is not None and merged is not None and budget_tokens > merged
    return is_more and recorded_end(status) == "Complete"


def syncer_end(syncer: SyncerStatusView | SyncerAway | None, budget_tokens: int | None) -> End | None:
    """The end that the syncer reports. Complete only once the model is exported, and a given budget merged.

    A syncer that has ended the job with a smaller budget starts again once it reads of it.
    """
    if not isinstance(syncer, SyncerStatusView):
        return None
    told = one_line(syncer.phase_reason)
    if syncer.phase is Phase.FAILED:
        return End("Failed", Reason.TRAINING_FAILED, told or "the syncer gave no reason")
    if syncer.phase is Phase.COMPLETE and syncer.model_exported and syncer.merged_tokens >= (budget_tokens or 0):
        return End("Complete", Reason.BUDGET_REACHED, told or "the token budget is merged")
    return None


def seconds_until_deadline(allowed_seconds: int | None, start_time: datetime | None, now: datetime) -> float | None:
    """Below or at 0: it has passed. None: there is none, or the clock does not run (suspended)."""
    if allowed_seconds is None or start_time is None:
        return None
    return allowed_seconds - (now - start_time).total_seconds()


def deadline_end(allowed_seconds: int | None, start_time: datetime | None, now: datetime) -> End | None:
    """The end of a job whose deadline has passed."""
    left = seconds_until_deadline(allowed_seconds, start_time, now)
    if left is None or left > 0:
        return None
    text = f"not complete after spec.activeDeadlineSeconds ({allowed_seconds} s)"
    return End("Failed", Reason.DEADLINE_EXCEEDED, text)


def seconds_to_live(kept_seconds: int | None, completion_time: datetime | None, now: datetime) -> float | None:
    """``kept_seconds``: the field. Below or at 0: delete it. None: it is kept."""
    if kept_seconds is None or completion_time is None:
        return None
    return kept_seconds - (now - completion_time).total_seconds()
