"""Decides what to do about a job: ``reconcile(job, observed, now, ...) -> Plan``.

The cases, in this order: the job is deleted, it has ended, it ends now, its manifest is refused, it is suspended, it
waits for quota, it runs. A job whose manifest is refused, or whose queue there is no Kueue for, can still be stopped
and still ends; otherwise it is left as it is.
Level-triggered: all state is in the objects themselves. So an operator that restarts between two reconciles loses
nothing, and reconciling an unchanged world again gives an empty plan.

Pure: no clock, no network, and randomness only through the ``CertificateMaker``.
"""

from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from diloco.spec import SpecError
from diloco.spec.reading.load import job_from
from diloco_operator.decide.causes.all import (
    blocking_causes,
    readmission_causes,
    running_causes,
    stopping_causes,
    taken_causes,
)
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.ending.deletion import deletion
from diloco_operator.decide.ending.ending import (
    End,
    deadline_end,
    goes_on,
    recorded_end,
    seconds_to_live,
    seconds_until_deadline,
    syncer_end,
)
from diloco_operator.decide.ending.stopping import scaled_to_nothing
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.learners.fallback import with_fallbacks
from diloco_operator.decide.learners.lost_pods import Finding, lost_pods
from diloco_operator.decide.learners.sessions import session_events
from diloco_operator.decide.objects.child_changes import Changes, changes, desired
from diloco_operator.decide.objects.workloads import replicas
from diloco_operator.decide.observed import ChildKey, Object, Observed, SyncerStatusView
from diloco_operator.decide.plan import Plan, Scaling
from diloco_operator.decide.queue.queue_now import WORKLOAD
from diloco_operator.decide.queue.shares import released_pods, statuses
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.conditions import AS_EXPECTED, Verdict, Verdicts, event, remembered, taken_over
from diloco_operator.decide.status.progress import moved, progress_of
from diloco_operator.decide.status.readiness import readiness
from diloco_operator.decide.status.status import with_status
from diloco_operator.decide.status.text import LONGEST_MESSAGE, one_line
from diloco_operator.decide.verdicts import degraded, ended, not_suspended, over, refused, reopened, standing
from diloco_operator.manifests import InvalidSpecError, NoImageError, Scale
from diloco_operator.options import OperatorOptions
from diloco_operator.signing import CertificateMaker


class _Read(NamedTuple):
    job_now: JobNow
    refusal: Cause | None
    """Why the manifest cannot be carried out."""


def reconcile(
    job: Object, observed: Observed, now: datetime, options: OperatorOptions, maker: CertificateMaker
) -> Plan:
    """Decide.

    Args:
        job: The DiLoCoJob as the API server hands it out, its status included.
        observed: Everything else that was observed.
        now: The time, with its zone.
        options: The operator's settings.
        maker: Where keys and serial numbers come from; asked only for certificates that are due.
    """
    job_now, refusal = _read(job, observed, now, options)
    if job["metadata"].get("deletionTimestamp"):
        return deletion(job_now)
    if recorded_end(job_now.before) is not None:
        return _has_ended(job_now, maker)
    # A syncer reads nothing of a manifest that is refused.
    end = syncer_end(observed.syncer, None if refusal else job_now.budget_tokens) or deadline_end(
        job_now.active_deadline_seconds, job_now.before.start_time, now
    )
    if end is not None:
        return _ends(job_now, end)
    if refusal is not None:
        return _is_refused(job_now, refusal)
    try:
        change = changes(job_now, _scale(job_now), maker)
        if change.outdated:
            # Its pods wait until the quota is for them.
            job_now = replace(job_now, outdated=change.outdated)
            change = changes(job_now, _scale(job_now), maker)
    except (InvalidSpecError, NoImageError) as error:
        job_now, end = replace(job_now, job=None), syncer_end(observed.syncer, None)
        return _is_refused(job_now, _refusal(error, observed)) if end is None else _ends(job_now, end)
    stands = _suspends if job_now.suspend else _waits_for_quota
    return _runs(job_now, change) if job_now.runs else stands(job_now, change)


def needs_pods(job: Object, observed: Observed, now: datetime, options: OperatorOptions) -> bool:
    """Whether a decision needs the list of pods, which ``observed`` does not have yet."""
    return _read(job, observed, now, options).job_now.needs_pods


def _read(job: Object, observed: Observed, now: datetime, options: OperatorOptions) -> _Read:
    job_now = JobNow(job, None, remembered(job), observed, now, options)
    if job["metadata"].get("deletionTimestamp") or recorded_end(job_now.before) is not None:
        return _Read(job_now, None)
    if observed.kueue is not None and observed.kueue.missing and not job_now.suspend:
        # Nothing can start, and what runs has quota that nobody can ask about.
        return _Read(job_now, Cause(Reason.QUEUE_UNUSABLE, observed.kueue.missing))
    try:
        return _Read(with_fallbacks(replace(job_now, job=job_from(job))), None)
    except SpecError as error:
        return _Read(job_now, _refusal(error, observed))


def _refusal(error: Exception, observed: Observed) -> Cause:
    if isinstance(error, NoImageError):
        return Cause(Reason.NO_IMAGE, one_line(str(error)))
    left = "; what already runs keeps running" if observed.children else ""
    return Cause(Reason.INVALID_SPEC, f"{one_line(str(error), LONGEST_MESSAGE - len(left))}{left}")


def _scale(job_now: JobNow) -> Scale:
    """How many pods should run: all, or the syncer alone while learners are left that can hand in their work."""
    desired = job_now.desired_learners
    if job_now.runs:
        return Scale(learners=desired, syncer=int(_may_start(job_now)))
    return Scale(learners=dict.fromkeys(desired, 0), syncer=int(_handing_in(job_now)))


def _may_start(job_now: JobNow) -> bool:
    """Whether it is known where the syncer's pod is to be. One that runs, runs on."""
    queue, live = job_now.queue, job_now.deployment
    return queue is None or queue.placing_syncer is not None or (live is not None and replicas(live) > 0)


def _handing_in(job_now: JobNow) -> bool:
    """Whether the syncer still has to wait for learners.

    One that never ran, or was stopped without waiting for another cluster, is not started for that.
    """
    left, deployment = job_now.pods_left, job_now.deployment
    return deployment is not None and replicas(deployment) > 0 and bool(left.learners or left.unseen)


def _ends(job_now: JobNow, end: End) -> Plan:
    """Record it before anything is stopped, because the syncer's status is not requested afterwards."""
    return with_status(job_now, Plan(again_in_seconds=0.0), over(job_now.before, end), end=end)


def _has_ended(job_now: JobNow, maker: CertificateMaker) -> Plan:
    """Remove its pods, learners first, and keep the rest until the job is deleted; or have it go on."""
    options = job_now.options
    if goes_on(job_now.before, job_now.budget_tokens) and _can_run(job_now, maker):
        # It is recorded before anything starts, because from then on the job is one that has not ended.
        return with_status(job_now, Plan(again_in_seconds=0.0), reopened(job_now), reopens=True)
    live_seconds = seconds_to_live(job_now.ttl_seconds_after_finished, job_now.before.completion_time, job_now.now)
    if live_seconds is not None and live_seconds <= 0:
        return Plan(again_in_seconds=options.resync_seconds, delete_job=True)
    again = min(_until_stopped(job_now), float("inf") if live_seconds is None else live_seconds)
    lost = lost_pods(job_now, stopping=True)
    return with_status(
        job_now,
        _without_lost_pods(Plan(again, scale=_all_down(job_now), delete=_quota_left(job_now)), lost),
        ended(job_now, [*lost.causes, *stopping_causes(job_now)]),
    )


def _can_run(job_now: JobNow, maker: CertificateMaker) -> bool:
    """Whether the manifest of a job that has ended can be carried out."""
    try:
        job_now = replace(job_now, job=job_from(job_now.given))
        desired(job_now, Scale(learners=job_now.desired_learners, syncer=1), maker)
    except (SpecError, InvalidSpecError, NoImageError):
        return False
    return True


def _suspends(job_now: JobNow, change: Changes) -> Plan:
    """Learners down, then the syncer; Suspended once no pod is left but those on lost nodes."""
    lost, still = lost_pods(job_now, stopping=True), standing(job_now)
    causes = [*lost.causes, *stopping_causes(job_now), *taken_causes(change.taken, job_now.observed.retained)]
    verdicts: Verdicts = {
        "Ready": replace(still, status="False"),
        "Progressing": replace(still, status="False"),
        "Degraded": degraded(job_now, causes),
        "Suspended": still,
        "Complete": AS_EXPECTED,
        "Failed": AS_EXPECTED,
    }
    plan = _planned(job_now, change, _until_stopped(job_now))
    return with_status(job_now, _without_lost_pods(plan, lost), verdicts)


def _waits_for_quota(job_now: JobNow, change: Changes) -> Plan:
    """As suspended, until Kueue admits the Workload with the syncer; its quota is free once no pod is left."""
    assert job_now.queue is not None
    lost, waiting = lost_pods(job_now, stopping=True), Verdict("False", Reason.QUEUED, job_now.queue.message)
    causes = [*lost.causes, *stopping_causes(job_now), *taken_causes(change.taken, job_now.observed.retained)]
    verdicts: Verdicts = {
        "Ready": waiting,
        "Progressing": waiting,
        "Degraded": degraded(job_now, causes),
        "Suspended": not_suspended(job_now.before),
        "Complete": taken_over(job_now.before, "Complete", AS_EXPECTED),
        "Failed": AS_EXPECTED,
    }
    plan = _planned(job_now, change, _until_stopped(job_now))
    return with_status(job_now, _without_lost_pods(plan, lost), verdicts)


def _is_refused(job_now: JobNow, cause: Cause) -> Plan:
    """Everything is left as it is, but for pods of lost nodes; if it is suspended, it is stopped.

    What would change an object waits: a pod without a node for a learner that is out, the next pool, an order to the
    syncer.
    """
    lost = lost_pods(job_now, stopping=job_now.suspend)
    if job_now.suspend:
        plan = Plan(_until_stopped(job_now), scale=_all_down(job_now), delete=_quota_left(job_now))
        verdicts = refused(cause, [*lost.causes, *stopping_causes(job_now)], standing(job_now))
    else:
        options = job_now.options
        plan = Plan(options.poll_seconds if job_now.pods_left.syncers else options.resync_seconds)
        suspended = taken_over(job_now.before, "Suspended", AS_EXPECTED)
        others = [*lost.causes, *blocking_causes(job_now.observed), *readmission_causes(job_now)]
        verdicts = refused(cause, others, suspended)
    return with_status(job_now, _without_lost_pods(plan, lost), verdicts)


def _runs(job_now: JobNow, change: Changes) -> Plan:
    """All objects are wanted, scaled up; the status reports progress."""
    view = job_now.observed.syncer
    moving = isinstance(view, SyncerStatusView) and moved(job_now.before.progress, progress_of(view, job_now.now))
    ready, progressing, connection = readiness(job_now, moving=moving)
    lost = lost_pods(job_now, stopping=False)
    causes = [*connection, *taken_causes(change.taken, job_now.observed.retained), *lost.causes]
    causes += [*running_causes(job_now, lost.lost), *readmission_causes(job_now)]
    verdicts: Verdicts = {
        "Ready": ready,
        "Progressing": progressing,
        "Degraded": degraded(job_now, causes),
        "Suspended": not_suspended(job_now.before),
        "Complete": taken_over(job_now.before, "Complete", AS_EXPECTED),
        "Failed": AS_EXPECTED,
    }
    plan = _without_lost_pods(_planned(job_now, change, _running_again(job_now)), lost)
    told = session_events(job_now.observed.sessions_told, view, frozenset(job_now.spec.learner_ids))
    return with_status(job_now, replace(_with_held_pods(job_now, plan), learner_events=told), verdicts)


def _planned(job_now: JobNow, change: Changes, again_in_seconds: float) -> Plan:
    return Plan(
        again_in_seconds,
        scale=change.scale,
        add_finalizer=job_now.clusters.needs_finalizer,
        apply=change.apply,
        adopt=change.adopt,
        delete=change.delete,
        workload_statuses=statuses(job_now),
    )


def _without_lost_pods(plan: Plan, lost: Finding) -> Plan:
    """``plan`` with the deletions of lost pods, and in time for the next ones."""
    again = min(plan.again_in_seconds, lost.again_in_seconds)
    return replace(plan, delete_pods=lost.delete, again_in_seconds=again)


def _with_held_pods(job_now: JobNow, plan: Plan) -> Plan:
    """``plan`` with the deletions of pods that are to be created anew, and what is left of the annotation."""
    reach = [found for key, found in job_now.holdings.items() if job_now.clusters.writable(key)]
    again = min([plan.again_in_seconds, *(found.again_in_seconds for found in reach)])
    lost = {one.uid for one in plan.delete_pods}
    delete = [one for found in reach for one in found.delete if one.uid not in lost]
    needless = job_now.readmitted.needless
    return replace(
        plan,
        delete_pods=(*plan.delete_pods, *delete),
        release_pods=released_pods(job_now),
        again_in_seconds=again,
        readmit_left=job_now.readmitted.left,
        readmit_events=(event(Reason.READMISSION_IGNORED, needless),) if needless else (),
    )


def _all_down(job_now: JobNow) -> tuple[Scaling, ...]:
    return scaled_to_nothing(job_now.observed.children, job_now.pods_left, job_now.clusters)


def _quota_left(job_now: JobNow) -> tuple[ChildKey, ...]:
    """The Workloads of a job that has ended or is stopped, once the list of its pods shows that none is left."""
    if job_now.observed.looked is None or job_now.pods_left.any:
        return ()
    return tuple(key for key in job_now.observed.children if key.kind == WORKLOAD)


def _until_stopped(job_now: JobNow) -> float:
    return job_now.options.poll_seconds if job_now.pods_left.any else job_now.options.resync_seconds


def _running_again(job_now: JobNow) -> float:
    left = seconds_until_deadline(job_now.active_deadline_seconds, job_now.before.start_time, job_now.now)
    return job_now.options.poll_seconds if left is None else min(job_now.options.poll_seconds, max(0.0, left))
