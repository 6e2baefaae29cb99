"""Whether a running job is Ready and Progressing, and why not.

Pure. It must not know pods: what is wrong with them is told by Degraded.
"""

from datetime import datetime, timedelta

from diloco_operator.case import Case
from diloco_operator.observed import Object, SyncerAway, SyncerStatusView
from diloco_operator.policies.placement import Cause
from diloco_operator.policies.pod_problems import parsed
from diloco_operator.policies.progress import STUCK_AFTER_SECONDS, stuck
from diloco_operator.policies.syncer_report import lowered_quorum, training
from diloco_operator.policies.workloads import syncer_ready
from diloco_operator.reasons import Reason
from diloco_operator.status import Verdict, since

SETTLING = timedelta(seconds=30)
"""A pod that has just become ready may not be reachable yet: its Service's endpoints lag behind (ours)."""


def readiness(case: Case, *, moving: bool) -> tuple[Verdict, Verdict, list[Cause]]:
    """(Ready, Progressing, what is wrong with the connection to the syncer).

    ``moving``: steps, tokens or an evaluation have come since the last write.
    """
    syncer = case.observed.syncer
    if isinstance(syncer, SyncerStatusView):
        return *_heard(case, syncer, moving=moving), []
    return _away(case, syncer)


def _heard(case: Case, view: SyncerStatusView, *, moving: bool) -> tuple[Verdict, Verdict]:
    number, desired = len(training(view) & set(case.spec.learner_ids)), len(case.spec.learner_ids)
    wanted = case.spec.sync.quorum
    lowered = lowered_quorum(view, wanted)
    quorum = wanted if lowered is None else lowered
    counted = f"{number} of {desired} learners train"
    if lowered is not None:
        counted += f", the quorum is {lowered} instead of {wanted}"
    if view.phase in ("Evaluating", "Complete"):
        reason = Reason.EVALUATING if view.phase == "Evaluating" else Reason.EXPORTING
        verdict = Verdict("True", reason, "the budget is merged")
        return verdict, verdict
    if number >= quorum:
        ready = Verdict("True", Reason.TRAINING, counted)
        if moving or not stuck(case.before, case.now):
            return ready, Verdict("True", Reason.TRAINING, "merges advance")
        text = f"{counted}, and nothing was merged for {STUCK_AFTER_SECONDS / 60:.0f} minutes"
        return ready, Verdict("False", Reason.NO_PROGRESS, text)
    if number == 0 and case.before.phase != "Training":
        waiting = Verdict("False", Reason.WAITING_FOR_LEARNERS, counted)
        return waiting, waiting
    text = counted if lowered is not None else f"{counted}, spec.sync.quorum is {quorum}"
    missing = Verdict("False", Reason.QUORUM_MISSING, text)
    return missing, missing


def _away(case: Case, away: SyncerAway | None) -> tuple[Verdict, Verdict, list[Cause]]:
    ready = syncer_ready(case.deployment)
    trained = case.before.phase == "Training"
    if not trained and not (ready and away is not None and _settled(case.deployment, case.now)):
        waiting = Verdict("False", Reason.WAITING_FOR_SYNCER, "the syncer's pod is not ready")
        return waiting, waiting, []
    cause = away.reason if ready and away is not None else "its pod is not ready"
    text = since(case.before, "Ready", f"the syncer does not answer: {cause}", case.now)
    verdict = Verdict("Unknown" if ready else "False", Reason.SYNCER_UNREACHABLE, text)
    return verdict, verdict, [Cause(Reason.SYNCER_UNREACHABLE, text)]


def _settled(deployment: Object | None, now: datetime) -> bool:
    """The Deployment has been available for a while."""
    for condition in ((deployment or {}).get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Available" and condition.get("status") == "True":
            at = parsed(condition.get("lastTransitionTime"))
            return at is None or now - at >= SETTLING
    return False
