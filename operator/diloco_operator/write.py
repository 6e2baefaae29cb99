"""The last step of every reconcile: the status as it should be, and whether that is worth a write.

Pure. Verdicts are reached elsewhere.
"""

from dataclasses import replace
from datetime import datetime

from diloco.spec.status import ExportedModel, JobStatus, Progress, SyncerEndpoints
from diloco_operator import names
from diloco_operator.case import Case
from diloco_operator.manifests.common import HTTP_PORT, SYNC_PORT
from diloco_operator.observed import SyncerStatusView
from diloco_operator.plan import Plan
from diloco_operator.policies.completion import recorded_end
from diloco_operator.policies.progress import due, held_back, moved, progress_of, restarts_of, without_rates
from diloco_operator.policies.suspend import start_time
from diloco_operator.policies.syncer_report import left_out, lowered_quorum, training
from diloco_operator.policies.workloads import syncer_ready
from diloco_operator.status import Heard, Verdicts, conditions, counts, events, phase_of, reason_of


def written(
    case: Case, plan: Plan, verdicts: Verdicts, *, model: ExportedModel | None = None, completed: datetime | None = None
) -> Plan:
    """``plan`` with the status and its events, if there is something new to say."""
    before, view = case.before, case.observed.syncer
    finished = completed is not None
    told = view if isinstance(view, SyncerStatusView) and recorded_end(before) is None else None
    running = not finished and not case.spec.suspend
    # Nobody trains before a syncer was ready for the first time.
    known = frozenset[str]() if before.phase != "Training" and not syncer_ready(case.deployment) else None
    heard = Heard(known) if told is None else _heard(told, case.spec.sync.quorum)
    counted = counts(case.workloads, heard, running=running)
    status = before.model_copy(
        update={
            "observed_generation": case.job.metadata.generation,
            "phase": phase_of(before, verdicts),
            "reason": reason_of(verdicts),
            "conditions": conditions(before, verdicts, case.job.metadata.generation, case.now),
            "learners": counted.learners,
            "regions": counted.regions,
            "restarts": before.restarts if told is None else restarts_of(told),
            "syncer": _endpoints(case, told),
            "model": model,
            # An end while it was suspended leaves it as it was.
            "start_time": before.start_time if finished else start_time(before, case.now, suspended=case.spec.suspend),
            "completion_time": completed,
        }
    )
    if told is None:
        status = status.model_copy(update={"progress": without_rates(before.progress)})
    else:
        status = _with_progress(status, before, progress_of(told, case.now), case.now)
    return if_new(plan, before, status)


def _heard(view: SyncerStatusView, quorum: int) -> Heard:
    return Heard(training(view), left_out(view), lowered_quorum(view, quorum))


def _with_progress(status: JobStatus, before: JobStatus, fresh: Progress, now: datetime) -> JobStatus:
    old = before.progress
    if old is None or (moved(old, fresh) and due(old, now)):
        return status.model_copy(update={"progress": fresh})
    if not moved(old, fresh):
        return status.model_copy(update={"progress": held_back(old, fresh)})
    # Too early for progress alone; with something else to say it goes along.
    return status if status == before else status.model_copy(update={"progress": fresh})


def _endpoints(case: Case, view: SyncerStatusView | None) -> SyncerEndpoints:
    host = names.syncer_host(case.name, case.job.metadata.namespace)
    before = case.before.syncer
    epoch = view.epoch if view is not None else before.epoch if before is not None else 0
    return SyncerEndpoints(
        endpoint=f"{host}:{SYNC_PORT}",
        http_endpoint=f"{host}:{HTTP_PORT}",
        epoch=epoch,
        claim_uid=case.volume.to_remember,
    )


def if_new(plan: Plan, before: JobStatus, after: JobStatus) -> Plan:
    """``plan`` with the status and its events, if it says something new."""
    if after == before:
        return plan
    return replace(plan, status=after.as_object(), events=events(before, after))
