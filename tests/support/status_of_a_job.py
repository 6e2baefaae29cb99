"""A status of a job that trains, and of one of its learners."""

from typing import Any, TypeVar

import yaml
from pydantic import BaseModel

from diloco.spec.status.engine import LearnerStatus
from diloco.spec.status.syncer import SyncerStatus

M = TypeVar("M", bound=BaseModel)

STATUS = SyncerStatus.model_validate(
    yaml.safe_load("""
    {job: small, epoch: 2, phase: Training, phase_reason: "", syncer_step: 5, merged_tokens: 640.0,
     budget_tokens: 1000, tokens_per_second: 1.0, seconds_left: 360.0, train_loss: 2.0, eval_loss: null,
     evaluations: [], goodput: 0.75, merged: 0.5, elapsed_seconds: 3.0, rounds_in_flight: 1,
     checkpoint: {newest: "000001", age_seconds: 4.0, failures: 3, problem: full}, tape_problem: "", learners: []}
    """)
)


def learner_status(index: int) -> LearnerStatus:
    return LearnerStatus(
        id=f"a/b/{index}",
        state="Training",
        steps=1,
        tokens=64,
        merged_tokens=0.0,
        tokens_per_second=1.0,
        restarts=0,
        time_seconds={"merged": 2.5, "late": 0.5},
    )


def changed(model: M, **changes: Any) -> M:
    """A copy with these changes."""
    return model.model_copy(update=changes)
