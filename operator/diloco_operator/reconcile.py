"""What is to be done about a job: ``reconcile(job, observed, now, ...) -> Plan``.

The whole life of a job, from top to bottom: it cannot be (invalid), it has ended, it ends, it is suspended, it runs.
Level-triggered: nothing is remembered but what stands in the objects themselves, so that an operator that is restarted
between any two reconciles loses nothing, and the same world twice gives an empty second plan.

Pure: no clock, no network, and randomness only through the ``CertificateMaker``. It must not know who executes plans.
"""

from dataclasses import replace
from datetime import datetime

from diloco.spec import SpecError
from diloco.spec.load import job_from
from diloco_operator.case import Case
from diloco_operator.manifests import InvalidSpecError, NoImageError
from diloco_operator.objects import Changes, changes
from diloco_operator.observed import Object, Observed, SyncerStatusView
from diloco_operator.options import OperatorOptions
from diloco_operator.plan import Plan
from diloco_operator.policies.completion import End, recorded_end, syncer_end
from diloco_operator.policies.deadline import deadline_end, seconds_until_deadline
from diloco_operator.policies.health import running_causes, stopping_causes, taken_causes, unhealthy
from diloco_operator.policies.placement import Cause, gravest_first
from diloco_operator.policies.progress import moved, progress_of
from diloco_operator.policies.readiness import readiness
from diloco_operator.policies.support import unsupported
from diloco_operator.policies.suspend import running, stopping
from diloco_operator.policies.text import LONGEST_MESSAGE, one_line
from diloco_operator.reasons import Reason
from diloco_operator.signing import CertificateMaker
from diloco_operator.standing import Bare, blocked, degraded, exported, finished, over, standing
from diloco_operator.status import IN_PROGRESS, Verdict, Verdicts, remembered, taken_over
from diloco_operator.write import written


def reconcile(
    job: Object, observed: Observed, now: datetime, options: OperatorOptions, maker: CertificateMaker
) -> Plan:
    """Decide.

    Args:
        job: The DiLoCoJob as the API server hands it out, its status included.
        observed: The world beside it.
        now: The time, with its zone.
        options: The operator's settings.
        maker: Where keys and serial numbers come from; asked only for certificates that are due.
    """
    if job["metadata"].get("deletionTimestamp"):
        return Plan(again_in_seconds=options.resync_seconds)
    bare = Bare(job, remembered(job), observed, now, options)
    if recorded_end(bare.before) is not None:
        return finished(bare)
    try:
        parsed = job_from(job)
        cause = unsupported(parsed.spec)
        if cause is None:
            return _lives(Case(parsed, bare.before, observed, now, options, maker, bare.volume))
    except (SpecError, InvalidSpecError) as error:
        cause = _invalid(str(error), observed)
    except NoImageError as error:
        cause = Cause(Reason.NO_IMAGE, one_line(str(error)))
    return blocked(bare, cause)


def _lives(case: Case) -> Plan:
    """A job that can be and has not ended so far."""
    ending = syncer_end(case.observed.syncer) or deadline_end(
        case.spec.active_deadline_seconds, case.before.start_time, case.now
    )
    if ending is not None:
        return _ends(case, ending)
    return _suspends(case) if case.spec.suspend else _runs(case)


def _runs(case: Case) -> Plan:
    """Everything is there and up; the status says how it goes."""
    ask = case.deployment is not None
    change = changes(case, running(case.desired_learners))
    plan = _planned(change, _running_again(case), ask_syncer=ask)
    look = unhealthy(case) and case.observed.may_look
    if look or (ask and case.observed.syncer is None):
        return replace(plan, again_in_seconds=0.0, look_closer=look)
    view = case.observed.syncer
    moving = isinstance(view, SyncerStatusView) and moved(case.before.progress, progress_of(view, case.now))
    ready, progressing, connection = readiness(case, moving=moving)
    causes = gravest_first([*connection, *taken_causes(change.taken), *running_causes(case)])
    verdicts: Verdicts = {
        "Ready": ready,
        "Progressing": progressing,
        "Degraded": degraded(causes, case.before, case.observed),
        "Suspended": _not_suspended(case),
        "Complete": IN_PROGRESS,
        "Failed": IN_PROGRESS,
    }
    return written(case, plan, verdicts)


def _suspends(case: Case) -> Plan:
    """Learners down, then the syncer; Suspended once no pod is left but those on lost nodes."""
    left = case.pods_left
    change = changes(case, stopping(case.desired_learners, left.learners))
    still = standing(left, case.before, case.observed)
    said = taken_over(case.before, "Suspended", IN_PROGRESS).status == "True"
    again = case.options.poll_seconds if left.any else case.options.resync_seconds
    # Until it is gone the syncer tells how far the job came.
    plan = _planned(change, again, ask_syncer=left.syncers > 0)
    # Before it is said that no pod is left, they are looked for.
    if (left.any or left.lost or not said) and case.observed.may_look:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    causes = stopping_causes(case.workloads, case.observed, case.volume, case.now)
    verdicts: Verdicts = {
        "Ready": replace(still, status="False"),
        "Progressing": replace(still, status="False"),
        "Degraded": degraded(gravest_first([*taken_causes(change.taken), *causes]), case.before, case.observed),
        "Suspended": still,
        "Complete": IN_PROGRESS,
        "Failed": IN_PROGRESS,
    }
    return written(case, plan, verdicts)


def _ends(case: Case, end: End) -> Plan:
    """The end is recorded before anything is stopped: what the syncer knows is asked of it no more afterwards."""
    model = exported(case.name) if end.phase == "Complete" else None
    completed = case.now.replace(microsecond=0)
    return written(case, Plan(again_in_seconds=0.0), over(case.before, end), model=model, completed=completed)


def _planned(change: Changes, again_in_seconds: float, *, ask_syncer: bool) -> Plan:
    return Plan(again_in_seconds, change.scale, change.apply, change.delete, ask_syncer=ask_syncer)


def _invalid(text: str, observed: Observed) -> Cause:
    left = "; what runs of it is left as it is" if observed.children else ""
    return Cause(Reason.INVALID_SPEC, f"{one_line(text, LONGEST_MESSAGE - len(left))}{left}")


def _not_suspended(case: Case) -> Verdict:
    never = Verdict("False", Reason.NOT_SUSPENDED)
    earlier = taken_over(case.before, "Suspended", never)
    return never if earlier.reason == Reason.NOT_SUSPENDED else Verdict("False", Reason.RESUMED)


def _running_again(case: Case) -> float:
    left = seconds_until_deadline(case.spec.active_deadline_seconds, case.before.start_time, case.now)
    return case.options.poll_seconds if left is None else min(case.options.poll_seconds, max(0.0, left))
