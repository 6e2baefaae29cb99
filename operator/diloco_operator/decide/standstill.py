"""The status of a job about which the operator can do nothing at present. Pure."""

from dataclasses import replace
from datetime import datetime

from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.ending.ending import recorded_end
from diloco_operator.decide.observed import Object
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.status.conditions import (
    AS_EXPECTED,
    CONDITION_TYPES,
    Verdict,
    Verdicts,
    conditions,
    events,
    phase_of,
    reason_of,
    remembered,
    taken_over,
)
from diloco_operator.decide.status.progress import without_rates


def standstill(job: Object, cause: Cause, now: datetime, again_in_seconds: float) -> Plan:
    """A plan that only has the job's conditions say why. The rest of its status stays as it was last written."""
    before = remembered(job)
    kept: Verdicts = {type_: taken_over(before, type_, AS_EXPECTED) for type_ in CONDITION_TYPES}
    verdicts: Verdicts = {**kept, "Degraded": Verdict("True", cause.reason, cause.message)}
    if recorded_end(before) is None:
        # What runs already may go on.
        unknown = Verdict("Unknown" if before.phase == "Training" else "False", cause.reason, cause.message)
        verdicts = {**verdicts, "Ready": unknown, "Progressing": unknown}
    made = conditions(before, verdicts, int(job["metadata"].get("generation") or 0), now)
    status = before.model_copy(
        update={
            "phase": phase_of(before, verdicts, now),
            "reason": reason_of(verdicts),
            "conditions": made,
            "progress": without_rates(before.progress),
        }
    )
    plan = Plan(again_in_seconds)
    return plan if status == before else replace(plan, status=status.as_object(), events=events(before, status))
