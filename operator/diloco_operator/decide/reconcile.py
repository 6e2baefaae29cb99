"""Decides what to do about a job: ``reconcile(job, observed, now, ...) -> Plan``.

The cases, from top to bottom: the job is invalid, it has ended, it ends now, it is suspended, it runs.
Level-triggered: all state is in the objects themselves. So an operator that restarts between two reconciles loses
nothing, and reconciling an unchanged world again gives an empty plan.

Pure: no clock, no network, and randomness only through the ``CertificateMaker``.
"""

from dataclasses import replace
from datetime import datetime

from diloco.spec import SpecError
from diloco.spec.load import job_from
from diloco_operator import names
from diloco_operator.decide.bare import Bare
from diloco_operator.decide.causes.all import (
    revocation_causes,
    running_causes,
    stopping_causes,
    taken_causes,
    unhealthy,
)
from diloco_operator.decide.causes.cause import Cause, gravest_first
from diloco_operator.decide.child_changes import Changes, changes
from diloco_operator.decide.conditions import IN_PROGRESS, Verdict, Verdicts, event, remembered, taken_over
from diloco_operator.decide.deletion import deletion
from diloco_operator.decide.ending import End, deadline_end, recorded_end, seconds_until_deadline, syncer_end
from diloco_operator.decide.fallback import with_fallbacks
from diloco_operator.decide.idle import (
    blocked,
    degraded,
    exported,
    finished,
    over,
    standing,
    was_suspended,
    without_lost_pods,
)
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.lost_pods import SYNCER_STOPPED
from diloco_operator.decide.observed import Object, Observed, SyncerStatusView
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.progress import moved, progress_of
from diloco_operator.decide.readiness import readiness
from diloco_operator.decide.readmission import READMIT
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.revocation import REVOKED, revoked
from diloco_operator.decide.scale import running, stopping
from diloco_operator.decide.status import with_status
from diloco_operator.decide.text import LONGEST_MESSAGE, one_line
from diloco_operator.decide.workloads import replicas
from diloco_operator.manifests import InvalidSpecError, NoImageError
from diloco_operator.options import OperatorOptions
from diloco_operator.signing import CertificateMaker


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
    bare = Bare(job, remembered(job), observed, now, options)
    if job["metadata"].get("deletionTimestamp"):
        return deletion(bare)
    if recorded_end(bare.before) is not None:
        return finished(bare)
    try:
        parsed = job_from(job)
        told = revoked(bare.annotation(REVOKED), names.pools(parsed.spec), now)
        return _lives(
            with_fallbacks(
                JobNow(
                    *(parsed, bare.before, observed, now, options, maker, bare.volume, bare.clusters, told),
                    lost_pod_policy=bare.lost_pod_policy,
                    syncer_stopped=bare.annotation(SYNCER_STOPPED),
                    readmit=bare.annotation(READMIT),
                    created=bare.created,
                )
            )
        )
    except (SpecError, InvalidSpecError) as error:
        cause = _invalid(str(error), observed)
    except NoImageError as error:
        cause = Cause(Reason.NO_IMAGE, one_line(str(error)))
    return blocked(bare, cause)


def _lives(job_now: JobNow) -> Plan:
    """A job that is valid and has not ended before."""
    ending = syncer_end(job_now.observed.syncer) or deadline_end(
        job_now.spec.active_deadline_seconds, job_now.before.start_time, job_now.now
    )
    if ending is not None:
        return _ends(job_now, ending)
    return _suspends(job_now) if job_now.spec.suspend else _runs(job_now)


def _runs(job_now: JobNow) -> Plan:
    """All objects are wanted, scaled up; the status reports progress."""
    ask = job_now.deployment is not None
    change = changes(job_now, running(job_now.desired_learners))
    plan = _planned(job_now, change, _running_again(job_now), ask_syncer=ask)
    look = job_now.holds or unhealthy(job_now.workloads_in_reach, job_now.deployment, job_now.claim)
    look = look and job_now.observed.may_look
    if look or (ask and job_now.observed.syncer is None):
        return replace(plan, again_in_seconds=0.0, look_closer=look)
    view = job_now.observed.syncer
    moving = isinstance(view, SyncerStatusView) and moved(job_now.before.progress, progress_of(view, job_now.now))
    ready, progressing, connection = readiness(job_now, moving=moving)
    lost = job_now.lost_pods(stopping=False)
    taken = taken_causes(change.taken, job_now.observed.retained)
    causes = gravest_first([*connection, *taken, *lost.causes, *running_causes(job_now, lost.lost)])
    verdicts: Verdicts = {
        "Ready": ready,
        "Progressing": progressing,
        "Degraded": degraded(causes, job_now.before, job_now.observed),
        "Suspended": _not_suspended(job_now),
        "Complete": IN_PROGRESS,
        "Failed": IN_PROGRESS,
    }
    return with_status(job_now, _with_held_pods(job_now, without_lost_pods(plan, lost)), verdicts)


def _with_held_pods(job_now: JobNow, plan: Plan) -> Plan:
    """``plan`` with the deletions of pods that are to be created anew, and what is left of the annotation."""
    reach = [found for key, found in job_now.holdings.items() if job_now.clusters.writable(key)]
    again = min([plan.again_in_seconds, *(found.again_in_seconds for found in reach)])
    lost = {one.uid for one in plan.delete_pods}
    delete = [one for found in reach for one in found.delete if one.uid not in lost]
    plan = replace(plan, delete_pods=(*plan.delete_pods, *delete), again_in_seconds=again)
    needless = job_now.readmitted.needless
    told = (event(Reason.READMISSION_IGNORED, needless),) if needless else ()
    return replace(plan, readmit_left=job_now.readmitted.left, readmit_events=told)


def _suspends(job_now: JobNow) -> Plan:
    """Learners down, then the syncer; Suspended once no pod is left but those on lost nodes."""
    left = job_now.pods_left
    change = changes(job_now, stopping(job_now.desired_learners, _handing_in(job_now)))
    still = standing(left, job_now.before, job_now.observed)
    again = job_now.options.poll_seconds if left.any else job_now.options.resync_seconds
    # Until its pod is gone, the syncer reports how far the job came.
    plan = _planned(job_now, change, again, ask_syncer=left.syncers > 0)
    # List the pods before reporting that none is left.
    if (left.any or left.lost or not was_suspended(job_now.before)) and job_now.observed.may_look:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    lost = job_now.lost_pods(stopping=True)
    causes = [*lost.causes, *stopping_causes(job_now.observed, job_now.volume, job_now.clusters)]
    causes += revocation_causes(job_now.revoked.problem)
    verdicts: Verdicts = {
        "Ready": replace(still, status="False"),
        "Progressing": replace(still, status="False"),
        "Degraded": degraded(
            gravest_first([*taken_causes(change.taken, job_now.observed.retained), *causes]),
            job_now.before,
            job_now.observed,
        ),
        "Suspended": still,
        "Complete": IN_PROGRESS,
        "Failed": IN_PROGRESS,
    }
    return with_status(job_now, without_lost_pods(plan, lost), verdicts)


def _handing_in(job_now: JobNow) -> int:
    """The learners that the syncer still has to wait for, or 0.

    A syncer that was stopped without waiting for another cluster is not started again when that is back.
    """
    left, deployment = job_now.pods_left, job_now.deployment
    here = left.learners - left.abroad
    return here or (left.abroad + left.unseen if deployment is not None and replicas(deployment) else 0)


def _ends(job_now: JobNow, end: End) -> Plan:
    """The end is recorded before anything is stopped, because the syncer's status is not requested afterwards."""
    model = exported(job_now.name) if end.phase == "Complete" else None
    said = over(job_now.before, end)
    return with_status(job_now, Plan(again_in_seconds=0.0), said, model=model, completed=job_now.latest)


def _planned(job_now: JobNow, change: Changes, again_in_seconds: float, *, ask_syncer: bool) -> Plan:
    return Plan(
        again_in_seconds,
        scale=change.scale,
        add_finalizer=job_now.clusters.needs_finalizer,
        apply=change.apply,
        adopt=change.adopt,
        delete=change.delete,
        ask_syncer=ask_syncer,
    )


def _invalid(text: str, observed: Observed) -> Cause:
    left = "; what already runs keeps running" if observed.children else ""
    return Cause(Reason.INVALID_SPEC, f"{one_line(text, LONGEST_MESSAGE - len(left))}{left}")


def _not_suspended(job_now: JobNow) -> Verdict:
    never = Verdict("False", Reason.NOT_SUSPENDED)
    earlier = taken_over(job_now.before, "Suspended", never)
    return never if earlier.reason == Reason.NOT_SUSPENDED else Verdict("False", Reason.RESUMED)


def _running_again(job_now: JobNow) -> float:
    left = seconds_until_deadline(job_now.spec.active_deadline_seconds, job_now.before.start_time, job_now.now)
    return job_now.options.poll_seconds if left is None else min(job_now.options.poll_seconds, max(0.0, left))
