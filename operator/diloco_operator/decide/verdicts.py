"""What the conditions of a job say, in words that several situations share. Pure."""

from dataclasses import replace

from diloco.spec.status.job import JobStatus
from diloco.spec.words import listed
from diloco_operator.decide.causes.cause import Cause, as_grave, gravest_first, joined
from diloco_operator.decide.causes.pools import FOUND_BY_LOOKING
from diloco_operator.decide.causes.syncer import OF_STORAGE, REPORTED
from diloco_operator.decide.ending.ending import End, recorded_end
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.observed import SyncerStatusView
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.conditions import AS_EXPECTED, Verdict, Verdicts, taken_over

_UNHEARD = " (when the syncer last answered)"


def over(before: JobStatus, end: End) -> Verdicts:
    """The verdicts about a job that ends now."""
    verdict = Verdict("False", end.reason, end.message)
    complete = end.phase == "Complete"
    return {
        # Tools that wait for an object to be as its manifest says (kstatus) wait for Ready.
        "Ready": replace(verdict, status="True" if complete else "False"),
        "Progressing": verdict,
        "Degraded": AS_EXPECTED,
        "Suspended": taken_over(before, "Suspended", AS_EXPECTED),
        "Complete": replace(verdict, status="True" if complete else "False"),
        "Failed": replace(verdict, status="False" if complete else "True"),
    }


def ended(job_now: JobNow, causes: list[Cause]) -> Verdicts:
    """The verdicts about a job that has ended: as they were, but for what is wrong now."""
    before = job_now.before
    kept: Verdicts = {
        type_: taken_over(before, type_, AS_EXPECTED) for type_ in ("Ready", "Progressing", "Complete", "Failed")
    }
    return {
        **kept,
        "Degraded": degraded(job_now, causes),
        "Suspended": taken_over(before, "Suspended", AS_EXPECTED),
    }


def reopened(job_now: JobNow) -> Verdicts:
    """The verdicts about a complete job that goes on, as its budget was raised."""
    merged = job_now.before.progress.tokens if job_now.before.progress else 0
    # Complete says it for as long as the job goes on, and the budget may change again.
    text = f"the job was complete with {merged} tokens merged, and spec.training.tokens was raised"
    raised = Verdict("False", Reason.RESUMED, text)
    kept: Verdicts = {
        type_: taken_over(job_now.before, type_, AS_EXPECTED) for type_ in ("Degraded", "Suspended", "Failed")
    }
    return {**kept, "Ready": raised, "Progressing": raised, "Complete": raised}


def refused(cause: Cause, others: list[Cause], suspended: Verdict) -> Verdicts:
    """The verdicts about a job that cannot run: neither Ready nor Progressing, for one main cause."""
    because, causes = Verdict("False", cause.reason, cause.message), gravest_first([cause, *others])
    return {
        "Ready": because,
        "Progressing": because,
        "Degraded": Verdict("True", causes[0].reason, joined(causes)),
        "Suspended": suspended,
        "Complete": AS_EXPECTED,
        "Failed": AS_EXPECTED,
    }


def degraded(job_now: JobNow, causes: list[Cause]) -> Verdict:
    """The Degraded verdict. What only pods, or the syncer, can show is kept while they cannot be asked."""
    causes = gravest_first(causes)
    earlier = taken_over(job_now.before, "Degraded", AS_EXPECTED)
    stands = job_now.observed.look_failed and earlier.status == "True" and earlier.reason in FOUND_BY_LOOKING
    if stands and (not causes or as_grave(earlier.reason, causes[0].reason)):
        return earlier
    asked = isinstance(job_now.observed.syncer, SyncerStatusView)
    lasting = OF_STORAGE if not job_now.runs or recorded_end(job_now.before) else REPORTED
    graver = causes and as_grave(causes[0].reason, earlier.reason)
    if earlier.status == "True" and earlier.reason in lasting and not (asked or graver):
        first = earlier.message.partition("; ")[0].removesuffix(_UNHEARD)
        causes = [Cause(earlier.reason, f"{first}{_UNHEARD}"), *causes]
    return Verdict("True", causes[0].reason, joined(causes)) if causes else AS_EXPECTED


def standing(job_now: JobNow) -> Verdict:
    """Whether a job has stopped as it should. It becomes Suspended only after a list of its pods was empty."""
    left, was = job_now.pods_left, job_now.was_suspended
    if not (left.learners or left.syncers) and (was or not left.unseen):
        if was or not job_now.observed.look_failed:
            away = listed(left.given_up, "and")
            text = f"learners in {away} are stopped once that cluster answers: it does not at present" if away else ""
            return Verdict("True", Reason.SUSPENDED, text)
        return Verdict("False", Reason.SUSPENDING, "the operator cannot check at the moment whether pods are left")
    if left.unseen and not left.learners:
        text = "waits for a cluster that does not answer and may have learners"
    else:
        text = "learners' pods are stopping" if left.learners else "the syncer's pod is stopping"
    return Verdict("False", Reason.SUSPENDING, text)


def not_suspended(before: JobStatus) -> Verdict:
    """The Suspended verdict about a job that runs."""
    earlier = taken_over(before, "Suspended", AS_EXPECTED)
    return AS_EXPECTED if earlier.reason == Reason.AS_EXPECTED else Verdict("False", Reason.RESUMED)
