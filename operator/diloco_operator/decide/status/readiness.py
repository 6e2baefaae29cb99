"""Whether a running job is Ready and Progressing, and why not.

Pure. The condition Degraded says what is wrong with pods.
"""

from diloco.spec.status.engine import Phase
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.causes.pods import evicted_by, is_on_silent_node, node_of
from diloco_operator.decide.causes.syncer import lowered_quorum, training
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.objects.workloads import is_settled, rolls_out, syncer_ready
from diloco_operator.decide.observed import SyncerAway, SyncerStatusView
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.conditions import Verdict, dated, has_had_a_syncer
from diloco_operator.decide.status.progress import STUCK_AFTER_SECONDS, stuck
from diloco_operator.decide.status.text import one_line


def readiness(job_now: JobNow, *, moving: bool) -> tuple[Verdict, Verdict, list[Cause]]:
    """(Ready, Progressing, what is wrong with the connection to the syncer).

    ``moving``: steps, tokens or an evaluation have come since the last write.
    """
    syncer = job_now.observed.syncer
    if isinstance(syncer, SyncerStatusView):
        return *_heard(job_now, syncer, moving=moving), []
    return _away(job_now, syncer)


def _heard(job_now: JobNow, view: SyncerStatusView, *, moving: bool) -> tuple[Verdict, Verdict]:
    ids = job_now.spec.learner_ids
    number, desired = len(training(view) & set(ids)), len(ids) - sum(job_now.elsewhere.values())
    wanted = job_now.spec.sync.quorum
    lowered = lowered_quorum(view, wanted)
    quorum = wanted if lowered is None else lowered
    counted = f"{number} of {desired} learners train"
    if lowered is not None:
        counted += f", the quorum is {lowered} (spec.sync.quorum is {wanted})"
    if view.phase in (Phase.EVALUATING, Phase.COMPLETE):
        verdict = Verdict("True", Reason.FINISHING, "the token budget is merged")
        return verdict, verdict
    if number >= quorum:
        ready = Verdict("True", Reason.TRAINING, counted)
        if moving or not stuck(job_now.before, job_now.now):
            merges = "merges advance" if view.syncer_step else f"no merge yet: {one_line(view.phase_reason)}"
            return ready, Verdict("True", Reason.TRAINING, merges)
        text = f"{counted}, but nothing was merged for {STUCK_AFTER_SECONDS / 60:.0f} minutes"
        return ready, Verdict("False", Reason.NO_PROGRESS, text)
    if number == 0 and job_now.before.phase != "Training":
        waiting = Verdict("False", Reason.WAITING_FOR_LEARNERS, counted)
        return waiting, waiting
    text = counted if lowered is not None else f"{counted}, spec.sync.quorum is {quorum}"
    missing = Verdict("False", Reason.QUORUM_MISSING, text)
    return missing, missing


def _away(job_now: JobNow, away: SyncerAway | None) -> tuple[Verdict, Verdict, list[Cause]]:
    ready = syncer_ready(job_now.deployment)
    answered = ready and away is not None and is_settled(job_now.deployment, job_now.now)
    if not answered and not has_had_a_syncer(job_now.before):
        waiting = Verdict("False", Reason.WAITING_FOR_SYNCER, "the syncer's pod is not ready")
        return waiting, waiting, []
    pods = [one.pod for one in job_now.syncer_pods]
    silent = next((node_of(pod) or "its node" for pod in pods if is_on_silent_node(pod)), "")
    evicted = next(filter(None, map(evicted_by, pods)), "")
    if not ready and not silent and (evicted or rolls_out(job_now.deployment)):
        how = f"was evicted: {evicted}" if evicted else "is replaced"
        waiting = Verdict("False", Reason.WAITING_FOR_SYNCER, f"the syncer's pod {how}")
        return waiting, waiting, []
    if ready and away is not None:
        cause = away.reason
    else:
        cause = f"its node {silent} does not respond" if silent else "its pod is not ready"
    found = Verdict("Unknown" if ready else "False", Reason.SYNCER_UNREACHABLE, f"the syncer does not answer: {cause}")
    verdict = dated(job_now.before, "Ready", found, job_now.now)
    return verdict, verdict, [Cause(Reason.SYNCER_UNREACHABLE, verdict.message)]
