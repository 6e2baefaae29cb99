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
from diloco.spec.status import ExportedModel
from diloco_operator import names
from diloco_operator.case import Case
from diloco_operator.manifests import InvalidSpecError, NoImageError
from diloco_operator.objects import changes, winding_down
from diloco_operator.observed import Object, Observed, SyncerStatusView
from diloco_operator.options import OperatorOptions
from diloco_operator.plan import Plan
from diloco_operator.policies.completion import End, recorded_end, syncer_end
from diloco_operator.policies.deadline import deadline_end, seconds_until_deadline
from diloco_operator.policies.health import running_causes, stopping_causes, unhealthy
from diloco_operator.policies.placement import Cause, joined
from diloco_operator.policies.progress import moved, progress_of
from diloco_operator.policies.readiness import readiness
from diloco_operator.policies.support import unsupported
from diloco_operator.policies.suspend import running, stopping
from diloco_operator.policies.text import LONGEST_MESSAGE, one_line
from diloco_operator.policies.ttl import seconds_to_live
from diloco_operator.reasons import Reason
from diloco_operator.signing import CertificateMaker
from diloco_operator.status import AS_EXPECTED, IN_PROGRESS, Verdict, Verdicts, remembered, taken_over
from diloco_operator.write import blocked, written

MODEL_PATH = "model.safetensors"
"""Where the syncer exports the model to, below the root of its volume."""


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
    before = remembered(job)
    end = recorded_end(before)
    try:
        parsed = job_from(job)
    except SpecError as error:
        if end is not None:
            return Plan(again_in_seconds=options.resync_seconds)
        return blocked(job, before, now, options, _invalid(str(error), observed))
    case = Case(parsed, before, observed, now, options, maker)
    if end is not None:
        return _finished(case)
    try:
        cause = unsupported(parsed.spec)
        return blocked(job, before, now, options, cause) if cause is not None else _lives(case)
    except InvalidSpecError as error:
        cause = _invalid(str(error), observed)
    except NoImageError as error:
        cause = Cause(Reason.NO_IMAGE, one_line(str(error)))
    return blocked(job, before, now, options, cause)


def _lives(case: Case) -> Plan:
    """A job that can be and has not ended so far."""
    ending = syncer_end(case.observed.syncer) or deadline_end(case.spec, case.before.start_time, case.now)
    if ending is not None:
        return _ends(case, ending)
    return _suspends(case) if case.spec.suspend else _runs(case)


def _runs(case: Case) -> Plan:
    """Everything is there and up; the status says how it goes."""
    apply, delete = changes(case, running(case.desired_learners))
    ask = case.deployment is not None
    plan = Plan(again_in_seconds=_running_again(case), apply=apply, delete=delete, ask_syncer=ask)
    look = unhealthy(case) and case.observed.looked is None
    if look or (ask and case.observed.syncer is None):
        return replace(plan, again_in_seconds=0.0, look_closer=look)
    view = case.observed.syncer
    moving = isinstance(view, SyncerStatusView) and moved(case.before.progress, progress_of(view, case.now))
    ready, progressing, connection = readiness(case, moving=moving)
    causes = [*connection, *running_causes(case)]
    verdicts: Verdicts = {
        "Ready": ready,
        "Progressing": progressing,
        "Degraded": _degraded(causes),
        "Suspended": _not_suspended(case),
        "Complete": IN_PROGRESS,
        "Failed": IN_PROGRESS,
    }
    return written(case, plan, verdicts)


def _suspends(case: Case) -> Plan:
    """Learners down, then the syncer; Suspended once no pod is left."""
    learners, syncers = case.pods_left
    apply, delete = changes(case, stopping(case.desired_learners, learners))
    standing = learners == 0 and syncers == 0
    said = taken_over(case.before, "Suspended", IN_PROGRESS).status == "True"
    again = case.options.resync_seconds if standing else case.options.poll_seconds
    # Until it is gone the syncer tells how far the job came.
    plan = Plan(again_in_seconds=again, apply=apply, delete=delete, ask_syncer=syncers > 0)
    # Before it is said that no pod is left, they are looked for.
    if not (standing and said) and case.observed.looked is None:
        return replace(plan, again_in_seconds=0.0, look_closer=True)
    causes = stopping_causes(case)
    what = "learners' pods" if learners else "the syncer's pod"
    still = Verdict("False", Reason.SUSPENDED if standing else Reason.SUSPENDING, "" if standing else f"{what} stop")
    verdicts: Verdicts = {
        "Ready": still,
        "Progressing": still,
        "Degraded": _degraded(causes),
        "Suspended": replace(still, status="True" if standing else "False"),
        "Complete": IN_PROGRESS,
        "Failed": IN_PROGRESS,
    }
    return written(case, plan, verdicts)


def _ends(case: Case, end: End) -> Plan:
    """The end is recorded before anything is stopped: what the syncer knows is asked of it no more afterwards."""
    over = Verdict("False", end.reason, end.message)
    complete = end.phase == "Complete"
    verdicts: Verdicts = {
        "Ready": over,
        "Progressing": over,
        "Degraded": AS_EXPECTED,
        "Suspended": taken_over(case.before, "Suspended", Verdict("False", Reason.NOT_SUSPENDED)),
        "Complete": replace(over, status="True" if complete else "False"),
        "Failed": replace(over, status="False" if complete else "True"),
    }
    model = ExportedModel(persistent_volume_claim=names.syncer(case.name), path=MODEL_PATH) if complete else None
    plan = Plan(again_in_seconds=0.0)
    return written(case, plan, verdicts, model=model, completed=case.now.replace(microsecond=0))


def _finished(case: Case) -> Plan:
    """Pods go, learners first; the rest stays until the job is deleted. Nothing in its spec starts it again."""
    left = seconds_to_live(case.spec, case.before.completion_time, case.now)
    if left is not None and left <= 0:
        return Plan(again_in_seconds=case.options.resync_seconds, delete_job=True)
    learners, syncers = case.pods_left
    again = case.options.poll_seconds if learners or syncers else case.options.resync_seconds
    plan = Plan(
        again_in_seconds=again if left is None else min(again, left),
        apply=winding_down(case, stopping(case.desired_learners, learners)),
    )
    verdicts: Verdicts = {one.type: taken_over(case.before, one.type, IN_PROGRESS) for one in case.before.conditions}
    fallback: Verdicts = {
        "Ready": IN_PROGRESS,
        "Progressing": IN_PROGRESS,
        "Degraded": AS_EXPECTED,
        "Suspended": Verdict("False", Reason.NOT_SUSPENDED),
        "Complete": IN_PROGRESS,
        "Failed": IN_PROGRESS,
    }
    return written(case, plan, {**fallback, **verdicts}, model=case.before.model, completed=case.before.completion_time)


def _invalid(text: str, observed: Observed) -> Cause:
    left = "; what runs of it is left as it is" if observed.children else ""
    return Cause(Reason.INVALID_SPEC, f"{one_line(text, LONGEST_MESSAGE - len(left))}{left}")


def _degraded(causes: list[Cause]) -> Verdict:
    return Verdict("True", causes[0].reason, joined(causes)) if causes else AS_EXPECTED


def _not_suspended(case: Case) -> Verdict:
    never = Verdict("False", Reason.NOT_SUSPENDED)
    earlier = taken_over(case.before, "Suspended", never)
    return never if earlier.reason == Reason.NOT_SUSPENDED else Verdict("False", Reason.RESUMED)


def _running_again(case: Case) -> float:
    left = seconds_until_deadline(case.spec, case.before.start_time, case.now)
    return case.options.poll_seconds if left is None else min(case.options.poll_seconds, max(0.0, left))
