"""What is done about a job that has ended, or whose manifest cannot be carried out. Pure.

All of this works even if the spec cannot be read or its objects cannot be built: it needs only the live objects, the
status, the syncer's report and a few fields (`stop_fields`). A job that runs goes on running then: nothing is created
or changed, but pods of lost nodes are removed, and an end that the syncer reports is carried out.
"""

from dataclasses import replace
from datetime import datetime

from diloco.spec.status import ExportedModel, JobStatus
from diloco.spec.words import listed
from diloco_operator import names
from diloco_operator.decide.bare import Bare
from diloco_operator.decide.causes.all import blocking_causes, stopping_causes, unhealthy
from diloco_operator.decide.causes.cause import Cause, as_grave, gravest_first, joined
from diloco_operator.decide.causes.pools import FOUND_BY_LOOKING
from diloco_operator.decide.conditions import (
    AS_EXPECTED,
    IN_PROGRESS,
    Heard,
    PodsSeen,
    Verdict,
    Verdicts,
    conditions,
    counts,
    phase_of,
    reason_of,
    taken_over,
)
from diloco_operator.decide.ending import End, deadline_end, seconds_to_live, syncer_end
from diloco_operator.decide.lost_pods import Verdict as LostVerdict
from diloco_operator.decide.observed import Observed
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.progress import progress_of, restarts_of, without_rates
from diloco_operator.decide.readmission import READMIT, named_in
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.scale import start_time
from diloco_operator.decide.status import if_new, with_progress
from diloco_operator.decide.stopping import PodsLeft, scaled_to_nothing

MODEL_PATH = "model.safetensors"
"""The path of the exported model, relative to the root of the syncer's volume."""


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
        scale=scaled_to_nothing(bare.observed.children, left, bare.clusters),
    )
    if (left.any or left.lost) and bare.observed.may_look:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    lost = bare.lost_pods(stopping=True)
    verdicts: Verdicts = {
        "Ready": taken_over(before, "Ready", IN_PROGRESS),
        "Progressing": taken_over(before, "Progressing", IN_PROGRESS),
        "Degraded": degraded(_stopping_causes(bare, lost), before, bare.observed),
        "Suspended": taken_over(before, "Suspended", Verdict("False", Reason.NOT_SUSPENDED)),
        "Complete": taken_over(before, "Complete", IN_PROGRESS),
        "Failed": taken_over(before, "Failed", IN_PROGRESS),
    }
    return _said(bare, without_lost_pods(plan, lost), verdicts, running=False)


def blocked(bare: Bare, cause: Cause) -> Plan:
    """Plan for a job whose objects cannot be built; the conditions say why.

    It can be stopped, it ends as any other, and its lost pods are removed. What would change an object waits: a pod
    without a node for a learner that is out, another node, the next pool, an order to the syncer.
    """
    if bare.observed.syncer is None and bare.left.syncers:
        return Plan(again_in_seconds=0.0, ask_syncer=True)
    deadline = bare.stop_fields.active_deadline_seconds
    end = syncer_end(bare.observed.syncer) or deadline_end(deadline, bare.before.start_time, bare.now)
    if end is not None:
        return _ends(bare, end)
    return _suspends(bare, cause) if bare.stop_fields.suspend else _runs(bare, cause)


def _ends(bare: Bare, end: End) -> Plan:
    """As of a job whose manifest can be read, the end is recorded before anything is stopped."""
    return _said(bare, Plan(again_in_seconds=0.0), over(bare.before, end), running=False, completed=bare.latest)


def _runs(bare: Bare, cause: Cause) -> Plan:
    """Everything is left as it is, but for pods of lost nodes."""
    runs = bare.left.syncers > 0
    plan = Plan(bare.options.poll_seconds if runs else bare.options.resync_seconds, ask_syncer=runs)
    pools = [workload for workload in bare.workloads if bare.clusters.answers(workload.key.cluster)]
    # A pod that is held back may be on a lost node, although its set has all pods that it wants.
    look = runs and (unhealthy(pools, bare.deployment, bare.volume.claim) or any(one.held for one in pools))
    if look and bare.observed.may_look:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    lost = bare.lost_pods(stopping=False)
    suspended = taken_over(bare.before, "Suspended", Verdict("False", Reason.NOT_SUSPENDED))
    others = [*lost.causes, *blocking_causes(bare.observed), *bare.not_revoked, *bare.not_readmitted]
    return _said(bare, without_lost_pods(plan, lost), _because_of(cause, others, suspended), running=True)


def _suspends(bare: Bare, cause: Cause) -> Plan:
    plan = Plan(
        again_in_seconds=bare.options.poll_seconds if bare.left.any else bare.options.resync_seconds,
        scale=scaled_to_nothing(bare.observed.children, bare.left, bare.clusters),
    )
    if bare.observed.may_look:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    lost = bare.lost_pods(stopping=True)
    others = _stopping_causes(bare, lost) + bare.not_revoked
    still = standing(bare.left, bare.before, bare.observed)
    return _said(bare, without_lost_pods(plan, lost), _because_of(cause, others, still), running=False)


def _stopping_causes(bare: Bare, lost: LostVerdict) -> list[Cause]:
    """What is wrong while a job is to stop or has ended."""
    return gravest_first([*lost.causes, *stopping_causes(bare.observed, bare.volume, bare.clusters)])


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


def without_lost_pods(plan: Plan, lost: LostVerdict) -> Plan:
    """``plan`` with the deletions of lost pods, and in time for the next ones."""
    again = min(plan.again_in_seconds, lost.again_in_seconds)
    return replace(plan, delete_pods=lost.delete, again_in_seconds=again)


def was_suspended(before: JobStatus) -> bool:
    """Whether the job has stopped before."""
    return taken_over(before, "Suspended", IN_PROGRESS).status == "True"


def standing(left: PodsLeft, before: JobStatus, observed: Observed) -> Verdict:
    """Whether a job has stopped as it should. It becomes Suspended only after a list of its pods was empty."""
    said = was_suspended(before)
    gone = not (left.learners or left.syncers) and (said or not left.unseen)
    if gone and (said or not observed.look_failed):
        return Verdict("True", Reason.SUSPENDED, _not_awaited(left))
    if gone:
        return Verdict("False", Reason.SUSPENDING, "the operator cannot check at the moment whether pods are left")
    if left.unseen and not left.learners:
        text = "waits for a cluster that does not answer and may have learners"
    else:
        text = "learners' pods are stopping" if left.learners else "the syncer's pod is stopping"
    return Verdict("False", Reason.SUSPENDING, text)


def _not_awaited(left: PodsLeft) -> str:
    if not left.given_up:
        return ""
    return f"learners in {listed(left.given_up, 'and')} are stopped once that cluster answers: it does not at present"


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
    """``plan`` with the status. ``completed``: when the job ends, if it ends now."""
    before, told, generation = bare.before, bare.told, int(bare.job["metadata"].get("generation") or 0)
    # A job without a status has no known pools to count. Which learners the pools have is not known exactly.
    heard = Heard(None if bare.workloads else frozenset())
    there = {one.pool: count for one in bare.workloads if (count := before.elsewhere.get(str(one.pool)))}
    pods = PodsSeen(elsewhere=there) if running else PodsSeen()
    counted = counts(bare.workloads, heard, bare.clusters, running=running, pods=pods)
    changed: dict[str, object] = {
        "learners": counted.learners,
        "regions": counted.regions,
        "restarts": before.restarts if told is None else restarts_of(told),
        "observed_generation": generation,
        "phase": phase_of(before, verdicts, bare.now),
        "reason": reason_of(verdicts),
        "conditions": conditions(before, verdicts, generation, bare.now),
    }
    if completed is not None:
        changed["completion_time"] = completed
        changed["model"] = exported(bare.name) if verdicts["Complete"].status == "True" else None
    elif bare.stop_fields.suspend and before.completion_time is None:
        changed["start_time"] = start_time(before, bare.latest, suspended=True)
    if told is not None and before.syncer is not None:
        changed["syncer"] = before.syncer.model_copy(update={"epoch": told.epoch})
    status = before.model_copy(update=changed)
    if told is None:
        status = status.model_copy(update={"progress": without_rates(before.progress)})
    else:
        status = with_progress(status, before, progress_of(told, bare.now), bare.now)
    return if_new(plan, before, status, named_in(bare.annotation(READMIT)))
