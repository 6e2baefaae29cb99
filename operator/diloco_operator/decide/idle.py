"""What is done about a job that does not run: it has ended, it is to be stopped, or it is invalid.

All of this works even if the spec cannot be read or its objects cannot be built: it needs only the live objects, the
status and a few fields (`stop_fields`). Pure.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from diloco.spec.status import ExportedModel, JobStatus
from diloco_operator import names
from diloco_operator.decide.causes.all import blocking_causes, stopping_causes
from diloco_operator.decide.causes.cause import Cause, as_grave, gravest_first, joined
from diloco_operator.decide.causes.pools import FOUND_BY_LOOKING
from diloco_operator.decide.causes.volume import START_ANEW, Volume, has_trained
from diloco_operator.decide.conditions import (
    AS_EXPECTED,
    IN_PROGRESS,
    Heard,
    Verdict,
    Verdicts,
    conditions,
    counts,
    phase_of,
    reason_of,
    taken_over,
)
from diloco_operator.decide.ending import End, deadline_end, seconds_to_live
from diloco_operator.decide.observed import ChildKey, Object, Observed
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.progress import without_rates
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.scale import start_time
from diloco_operator.decide.status import if_new
from diloco_operator.decide.stop_fields import StopFields, stop_fields
from diloco_operator.decide.stopping import PodsLeft, pods_left, scaled_to_nothing
from diloco_operator.decide.workloads import STATEFUL_SET, PoolWorkload, syncer_claim
from diloco_operator.names import PoolKey
from diloco_operator.options import OperatorOptions

MODEL_PATH = "model.safetensors"
"""The path of the exported model, relative to the root of the syncer's volume."""


@dataclass(frozen=True)
class Bare:
    """A job whose spec need not be readable."""

    job: Object
    before: JobStatus
    observed: Observed
    now: datetime
    options: OperatorOptions

    @property
    def stop_fields(self) -> StopFields:
        """The fields that stop it."""
        return stop_fields(self.job)

    @property
    def left(self) -> PodsLeft:
        """Its pods."""
        return pods_left(self.observed.children, self.observed.looked, self.now)

    @property
    def volume(self) -> Volume:
        """The claim that holds its training."""
        metadata = self.job["metadata"]
        name = str(metadata["name"])
        return Volume(
            name=names.syncer(name),
            remembered=self.before.syncer.claim_uid if self.before.syncer else "",
            trained=has_trained(self.before),
            claim=syncer_claim(name, self.observed.children),
            start_anew=str((metadata.get("annotations") or {}).get(START_ANEW, "")),
        )

    @property
    def workloads(self) -> list[PoolWorkload]:
        """Its pools, as the status remembers them."""
        found = []
        for region in self.before.regions:
            for pool in region.pools:
                key = ChildKey(STATEFUL_SET, pool.stateful_set)
                live = self.observed.children.get(key)
                found.append(PoolWorkload(PoolKey(region.name, pool.name), key, live, pool.desired))
        return found


def over(before: JobStatus, end: End) -> Verdicts:
    """The verdicts about a job that ends now."""
    verdict = Verdict("False", end.reason, end.message)
    complete = end.phase == "Complete"
    return {
        "Ready": verdict,
        "Progressing": verdict,
        "Degraded": AS_EXPECTED,
        "Suspended": taken_over(before, "Suspended", Verdict("False", Reason.NOT_SUSPENDED)),
        "Complete": replace(verdict, status="True" if complete else "False"),
        "Failed": replace(verdict, status="False" if complete else "True"),
    }


def finished(bare: Bare) -> Plan:
    """Plan for a job that has ended: remove its pods, learners first, and keep the rest until the job is deleted."""
    before, options = bare.before, bare.options
    live_seconds = seconds_to_live(bare.stop_fields.ttl_seconds_after_finished, before.completion_time, bare.now)
    if live_seconds is not None and live_seconds <= 0:
        return Plan(again_in_seconds=options.resync_seconds, delete_job=True)
    left = bare.left
    again = options.poll_seconds if left.any else options.resync_seconds
    plan = Plan(
        again_in_seconds=again if live_seconds is None else min(again, live_seconds),
        scale=scaled_to_nothing(bare.observed.children, left),
    )
    if (left.any or left.lost) and bare.observed.may_look:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    verdicts: Verdicts = {
        "Ready": taken_over(before, "Ready", IN_PROGRESS),
        "Progressing": taken_over(before, "Progressing", IN_PROGRESS),
        "Degraded": degraded(
            stopping_causes(bare.workloads, bare.observed, bare.volume, bare.now), before, bare.observed
        ),
        "Suspended": taken_over(before, "Suspended", Verdict("False", Reason.NOT_SUSPENDED)),
        "Complete": taken_over(before, "Complete", IN_PROGRESS),
        "Failed": taken_over(before, "Failed", IN_PROGRESS),
    }
    return _said(bare, plan, verdicts, running=False)


def blocked(bare: Bare, cause: Cause) -> Plan:
    """Plan for a job whose objects cannot be built; the conditions say why. It can still be stopped."""
    end = deadline_end(bare.stop_fields.active_deadline_seconds, bare.before.start_time, bare.now)
    if end is not None:
        completed = bare.now.replace(microsecond=0)
        return _said(bare, Plan(again_in_seconds=0.0), over(bare.before, end), running=False, completed=completed)
    if bare.stop_fields.suspend:
        return _suspends(bare, cause)
    suspended = taken_over(bare.before, "Suspended", Verdict("False", Reason.NOT_SUSPENDED))
    verdicts = _because_of(cause, blocking_causes(bare.observed), suspended)
    return _said(bare, Plan(again_in_seconds=bare.options.resync_seconds), verdicts, running=True)


def _suspends(bare: Bare, cause: Cause) -> Plan:
    plan = Plan(
        again_in_seconds=bare.options.poll_seconds if bare.left.any else bare.options.resync_seconds,
        scale=scaled_to_nothing(bare.observed.children, bare.left),
    )
    if bare.observed.may_look:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    others = stopping_causes(bare.workloads, bare.observed, bare.volume, bare.now)
    still = standing(bare.left, bare.before, bare.observed)
    return _said(bare, plan, _because_of(cause, others, still), running=False)


def _because_of(cause: Cause, others: list[Cause], suspended: Verdict) -> Verdicts:
    """The verdicts about a job that cannot run: neither Ready nor Progressing, for one main cause."""
    because, causes = Verdict("False", cause.reason, cause.message), gravest_first([cause, *others])
    return {
        "Ready": because,
        "Progressing": because,
        "Degraded": Verdict("True", causes[0].reason, joined(causes)),
        "Suspended": suspended,
        "Complete": IN_PROGRESS,
        "Failed": IN_PROGRESS,
    }


def standing(left: PodsLeft, before: JobStatus, observed: Observed) -> Verdict:
    """Whether a job has stopped as it should. It becomes Suspended only after a list of its pods was empty."""
    said = taken_over(before, "Suspended", IN_PROGRESS).status == "True"
    if not left.any and (said or not observed.look_failed):
        return Verdict("True", Reason.SUSPENDED)
    if not left.any:
        return Verdict("False", Reason.SUSPENDING, "the operator cannot check at the moment whether pods are left")
    text = "learners' pods are stopping" if left.learners else "the syncer's pod is stopping"
    return Verdict("False", Reason.SUSPENDING, text)


def degraded(causes: list[Cause], before: JobStatus, observed: Observed) -> Verdict:
    """The Degraded verdict. While pods cannot be listed, the earlier verdict is kept."""
    earlier = taken_over(before, "Degraded", AS_EXPECTED)
    stands = observed.look_failed and earlier.status == "True" and earlier.reason in FOUND_BY_LOOKING
    if stands and (not causes or as_grave(earlier.reason, causes[0].reason)):
        return earlier
    return Verdict("True", causes[0].reason, joined(causes)) if causes else AS_EXPECTED


def exported(job: str) -> ExportedModel:
    """Where a complete job's model is."""
    return ExportedModel(persistent_volume_claim=names.syncer(job), path=MODEL_PATH)


def _said(bare: Bare, plan: Plan, verdicts: Verdicts, *, running: bool, completed: datetime | None = None) -> Plan:
    """``plan`` with the status; the known progress of the job stays."""
    before, generation = bare.before, int(bare.job["metadata"].get("generation") or 0)
    # A job without a status has no known pools to count.
    counted = counts(bare.workloads, Heard(None if bare.workloads else frozenset()), running=running)
    changed: dict[str, object] = {
        "learners": counted.learners,
        "regions": counted.regions,
        "progress": without_rates(before.progress),
        "observed_generation": generation,
        "phase": phase_of(before, verdicts, bare.now),
        "reason": reason_of(verdicts),
        "conditions": conditions(before, verdicts, generation, bare.now),
    }
    if completed is not None:
        changed["completion_time"] = completed
    elif bare.stop_fields.suspend and before.completion_time is None:
        changed["start_time"] = start_time(before, bare.now, suspended=True)
    return if_new(plan, before, before.model_copy(update=changed))
